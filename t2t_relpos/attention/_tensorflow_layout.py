"""Where blocks of queries stand among the keys, for attention block by block on TensorFlow."""

import tensorflow as tf

from t2t_relpos.attention._tensorflow_diagonals import extent


class Layout:
    """Blocks of C queries, and margins of keys that do not exist, so that every block has all of its diagonals.

    Args:
        length_q: number of queries T, an int or a scalar tensor.
        length_k: number of keys S, an int or a scalar tensor.
        query_offset: key position of query 0, an int or a scalar tensor.
        reach: K, at least 1, or 2 where `causal`.
        causal: whether keys after a query are hidden: those after the last query of a block are left out.
        largest_block: largest C.
        stretch: of the `Diagonals`.
        margins: whether there can be any; False, where `needs_margins` said so.
    """

    def __init__(
        self, length_q, length_k, query_offset, reach, causal, largest_block, stretch, margins
    ):
        self.length_q, self.length_k, self.causal = length_q, length_k, causal
        self.num_blocks = (length_q + largest_block - 1) // largest_block
        # As even as possible: what is missing from the last block is computed for nothing.
        self.block = (length_q + self.num_blocks - 1) // tf.maximum(self.num_blocks, 1)
        self.left = self.right = 0
        if margins:
            settings = reach, causal, stretch
            self.left, self.right = _margins(
                length_k, query_offset, self.num_blocks, self.block, *settings, _largest
            )
        self.width = self.left + length_k + self.right
        self._first = query_offset + self.left

    def rows(self, block):
        """The slice of a block's queries."""
        return slice(block * self.block, (block + 1) * self.block)

    def places(self):
        """Where queries stand among keys with margins: `[blocks, C]`."""
        return self.first(tf.range(self.num_blocks))[:, None] + tf.range(self.block)

    def in_blocks(self, x):
        """`[groups, G, T, X]` -> `[groups, blocks, G, C, X]`."""
        groups, heads = tf.unstack(tf.shape(x)[:2])
        x = tf.reshape(
            self.pad_queries(x), tf.stack([groups, heads, self.num_blocks, self.block, x.shape[3]])
        )
        return tf.transpose(x, [0, 2, 1, 3, 4])

    def joined(self, x):
        """`[groups, blocks, G, C, X]` -> `[groups, G, T, X]`."""
        x = tf.transpose(x, [0, 2, 1, 3, 4])
        groups, heads, _, _, depth = tf.unstack(tf.shape(x))
        return tf.reshape(x, tf.stack([groups, heads, self.num_blocks * self.block, depth]))[
            :, :, : self.length_q
        ]

    def first(self, block):
        """Where a block's first query stands among keys with margins."""
        return self._first + block * self.block

    def end(self, block):
        """How many keys, with margins, a block looks at."""
        return tf.minimum(self.width, self.first(block) + self.block) if self.causal else self.width

    def with_hidden(self, x, block):
        """`[.., keys that a block looks at, X]` -> `[.., with margins, X]`: zeros for those after it."""
        return _pad(x, 0, self.width - self.end(block)) if self.causal else x

    def pad_queries(self, x, value=0):
        """`[.., T, X]` -> `[.., all blocks, X]`."""
        return _pad(x, 0, self.num_blocks * self.block - self.length_q, value=value)

    def pad_keys(self, x, axis=-2, value=0):
        """`[.., S, X]` -> `[.., with margins, X]`."""
        return _pad(x, self.left, self.right, axis, value)

    def without_margins(self, x):
        """`[.., with margins, X]` -> `[.., S, X]`."""
        return x[..., self.left : self.left + self.length_k, :]


def needs_margins(length_q, length_k, query_offset, reach, causal, largest_block, stretch):
    """Whether a `Layout` has margins; True where not all numbers are known."""
    if not all(isinstance(x, int) for x in (length_q, length_k, query_offset)):
        return True
    num_blocks = max(-(-length_q // largest_block), 1)
    return _margins(
        length_k, query_offset, num_blocks, -(-length_q // num_blocks), reach, causal, stretch, max
    ) != (0, 0)


def _margins(length_k, query_offset, num_blocks, block, reach, causal, stretch, largest):
    """(left, right): so many keys that the lowest and the highest diagonal of every block exist and one holds all of its queries."""
    below, above = extent(reach, causal, stretch)
    last = query_offset + (num_blocks - 1) * block
    left = largest(0, below - block - query_offset, 1 - above - query_offset)
    # One diagonal holds all queries; where there are stretches, none that ends after the last key lies far to the left, which asks for more.
    lowest = last + block + 1 - below if causal else last + block - 1 - reach
    right = largest(0, last + above - length_k, lowest - length_k, block - length_k - left)
    return left, right


def _largest(*numbers):
    return tf.reduce_max(tf.stack(numbers))


def _pad(x, before, after, axis=-2, value=0):
    if isinstance(before, int) and isinstance(after, int) and before == after == 0:
        return x
    widths = [[0, 0]] * len(x.shape)
    widths[axis] = [before, after]
    return tf.pad(x, widths, constant_values=value)
