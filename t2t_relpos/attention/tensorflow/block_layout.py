"""Positions of query blocks among the keys, for blockwise attention on TensorFlow."""

import tensorflow as tf


class BlockLayout:
    """Blocks of C queries, and keys padded so that each block has every diagonal of its band.

    Args:
        lengths: (T, S), ints or scalar tensors.
        query_offset: key position of query 0, an int or a scalar tensor.
        band_shape: a `BandShape`. If causal, keys after a block's last query are left out.
        largest_block: largest C.
        may_be_padded: whether keys may need padding, the result of `needs_padding`.
    """

    def __init__(self, lengths, query_offset, band_shape, largest_block, *, may_be_padded):
        self.length_q, self.length_k = lengths
        self.causal, self.may_be_padded = band_shape.causal, may_be_padded
        self.num_blocks = (self.length_q + largest_block - 1) // largest_block
        # Blocks of equal size need the least padding of the last one.
        self.block = (self.length_q + self.num_blocks - 1) // tf.maximum(self.num_blocks, 1)
        self.left = self.right = 0
        if may_be_padded:
            blocks = self.num_blocks, self.block
            self.left, self.right = _padding(
                self.length_k, query_offset, blocks, band_shape, _maximum
            )
        self.width = self.left + self.length_k + self.right
        self._first = query_offset + self.left

    def query_slice(self, block):
        """Returns the slice of a block's queries."""
        return slice(block * self.block, (block + 1) * self.block)

    def positions(self):
        """Returns the positions of queries among padded keys, `[blocks, C]`."""
        return self.first(tf.range(self.num_blocks))[:, None] + tf.range(self.block)

    def first(self, block):
        """Returns the position of a block's first query among padded keys."""
        return self._first + block * self.block

    def end(self, block):
        """Returns the number of padded keys that a block reads."""
        return tf.minimum(self.width, self.first(block) + self.block) if self.causal else self.width

    def split(self, x):
        """Splits queries into blocks, `[groups, G, T, X]` -> `[groups, blocks, G, C, X]`."""
        groups, heads = tf.unstack(tf.shape(x)[:2])
        shape = tf.stack([groups, heads, self.num_blocks, self.block, x.shape[3]])
        return tf.transpose(tf.reshape(self.pad_queries(x), shape), [0, 2, 1, 3, 4])

    def join(self, x):
        """Joins blocks of queries, `[groups, blocks, G, C, X]` -> `[groups, G, T, X]`."""
        x = tf.transpose(x, [0, 2, 1, 3, 4])
        groups, heads, _, _, depth = tf.unstack(tf.shape(x))
        x = tf.reshape(x, tf.stack([groups, heads, self.num_blocks * self.block, depth]))
        return x[:, :, : self.length_q]

    def pad_end(self, x, block):
        """Appends zeros to the keys that a block reads, for a result `[.., padded keys, X]`."""
        return _pad(x, 0, self.width - self.end(block)) if self.causal else x

    def pad_queries(self, x, value=0):
        """Pads queries to whole blocks, `[.., T, X]` -> `[.., all blocks' queries, X]`."""
        return _pad(x, 0, self.num_blocks * self.block - self.length_q, value=value)

    def pad_keys(self, x, axis=-2, value=0):
        """Pads keys, `[.., S, X]` -> `[.., padded keys, X]`."""
        return _pad(x, self.left, self.right, axis, value)

    def unpad_keys(self, x):
        """Removes the padding of keys, `[.., padded keys, X]` -> `[.., S, X]`."""
        return x[..., self.left : self.left + self.length_k, :]


def needs_padding(lengths, query_offset, band_shape, largest_block):
    """Returns whether a `BlockLayout` pads keys. True if a length or the offset is unknown."""
    if not all(isinstance(x, int) for x in (*lengths, query_offset)):
        return True
    length_q, length_k = lengths
    num_blocks = max(-(-length_q // largest_block), 1)
    blocks = num_blocks, -(-length_q // num_blocks)
    return _padding(length_k, query_offset, blocks, band_shape, max) != (0, 0)


def _padding(length_k, query_offset, blocks, band_shape, maximum):
    """Returns the keys to add (left, right) so that every block has each diagonal of its band."""
    num_blocks, block = blocks
    below, above = band_shape.num_diagonals
    last = query_offset + (num_blocks - 1) * block
    # The band of the first block ends after the first key, and no diagonal starts before it.
    left = maximum(0, below - block - query_offset, 1 - above - query_offset)
    # The band of the last block ends at `last + above`. With `needed_keys` keys, one diagonal
    # contains all queries of the block (causal), or the tail of its last query ends at a key.
    if band_shape.causal:
        needed_keys = last + block + 1 - below
    else:
        needed_keys = last + block - 1 - band_shape.max_relative_position
    right = maximum(0, last + above - length_k, needed_keys - length_k, block - length_k - left)
    return left, right


def _maximum(*numbers):
    return tf.reduce_max(tf.stack(numbers))


def _pad(x, before, after, axis=-2, value=0):
    if isinstance(before, int) and isinstance(after, int) and before == after == 0:
        return x
    widths = [[0, 0]] * len(x.shape)
    widths[axis] = [before, after]
    return tf.pad(x, widths, constant_values=value)
