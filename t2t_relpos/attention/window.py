"""The keys around a block of queries where relative positions differ from pair to pair."""

from keras import ops


class Window:
    """Blocks of C queries, and for each the keys for which more than one label occurs.

    Query x of a block stands at column `x + K` of its window, which has
    `W = C + 2K` columns (`C + K` where keys after the query are hidden), so the
    label of a column is `clip(column - x, 0, R - 1)` in every block. All keys left of
    the window have the label 0, all keys right of it the label 2K.

    Args:
        length_q: number of queries T, an int or a scalar tensor.
        length_k: number of keys S, an int or a scalar tensor.
        query_offset: key position of query 0, an int or a scalar tensor.
        num_labels: rows of the tables, 2K + 1.
        causal: whether keys after a query are hidden, and labels above K with them.
        largest_block: largest C.
        dtype: of the entries that `spread` and `collapse` move.
    """

    def __init__(self, length_q, length_k, query_offset, num_labels, causal, largest_block, dtype):
        self.length_q, self.length_k, self.query_offset = length_q, length_k, query_offset
        self.reach = (num_labels - 1) // 2
        self.causal = causal
        self.num_labels = self.reach + 1 if causal else num_labels
        self.num_blocks = (length_q + largest_block - 1) // largest_block
        # As even as possible: what is missing from the last block is computed for nothing.
        self.block = (length_q + self.num_blocks - 1) // ops.maximum(self.num_blocks, 1)
        self.width = self.block + self.num_labels - 1
        columns = ops.arange(self.block)
        # Behind the R entries of row x follow C more: first its own last entry, then the zeros of row x + 1.
        self._own = ops.cast(columns[None, :] < self.block - 1 - columns[:, None], dtype)

    def rows(self, block):
        """The slice of a block's queries."""
        return slice(block * self.block, (block + 1) * self.block)

    def keys(self, block):
        """(first, end): the keys in the window of a block."""
        start = self._start(block)
        return tuple(ops.clip(x, 0, self.length_k) for x in (start, start + self.width))

    def _start(self, block):
        """Where the window begins: before the first key, maybe."""
        return self.query_offset + block * self.block - self.reach

    def _columns(self, block):
        """(first, end): the columns of the window that are keys."""
        first, end = self.keys(block)
        column = ops.clip(-self._start(block), 0, self.width)
        return column, column + end - first

    def spread(self, by_label, block):
        """Entries by label -> entries by key: `out[.., x, j] = by_label[.., x, label(x, j)]`.

        Args:
            by_label: `[G, C, R]`, of G heads; the entry of label 0 being 0.
            block: number of the block.

        Returns:
            `[G, C, keys in the window]`. What `causal` hides is arbitrary.

        Written with rows of W + 1 entries and read with rows of W, every row has
        moved one place to the right of the row above.
        """
        tail = self._own * by_label[..., -1:]
        buffer = ops.reshape(ops.concatenate([by_label, tail], axis=-1), (ops.shape(by_label)[0], -1))
        columns = ops.reshape(buffer[:, : self.block * self.width], (-1, self.block, self.width))
        first, end = self._columns(block)
        return columns[..., first:end]

    def collapse(self, by_key, block):
        """Sums by label: `out[.., x, r]` = sum of `by_key[.., x, j]` with label r, the transpose of `spread`.

        Args:
            by_key: `[G, C, keys in the window]`, 0 where hidden.
            block: number of the block.

        Returns:
            `[G, C, R]`. The entry of label 0 is not the sum: nothing asks for it.
        """
        first, end = self._columns(block)
        padded = ops.pad(by_key, [[0, 0], [0, 0], [first, self.width - end]])
        shifted = ops.reshape(padded, (ops.shape(padded)[0], -1))[:, : (self.block - 1) * (self.width + 1)]
        shifted = ops.reshape(shifted, (ops.shape(padded)[0], self.block - 1, self.width + 1))
        last = padded[:, self.block - 1 :, self.block - 1 :]
        sums = ops.concatenate([shifted[..., : self.num_labels], last], axis=1)
        if self.causal:
            return sums
        clipped = ops.sum(shifted[..., self.num_labels :] * self._own[:-1], axis=-1, keepdims=True)
        clipped = ops.pad(clipped, [[0, 0], [0, 1], [0, 0]])
        return ops.concatenate([sums[..., :-1], sums[..., -1:] + clipped], axis=-1)

    def hidden(self, block):
        """bool `[C, keys in the window]`: the keys that lie after their query."""
        first, end = self._columns(block)
        columns = ops.arange(self.width)[None, :] - ops.arange(self.block)[:, None]
        return columns[:, first:end] > self.reach

    def outside(self, sides, block):
        """The keys outside of a block's window, those right of it first.

        Args:
            sides: `[G, 2S, X]`: what stands for keys on the right, then what stands
                for keys on the left. `[G, S, X]`, on the left, where `causal`.
        """
        first, end = self.keys(block)
        return sides[:, :first] if self.causal else sides[:, end : self.length_k + first]

    def right(self, outside, block):
        """Of what belongs to the keys outside of a window, that of the keys right of it."""
        return outside[:, :0] if self.causal else outside[:, : self.length_k - self.keys(block)[1]]

    def in_order(self, outside, inside, block):
        """What belongs to the keys outside and inside of a window, by key: `[G, S, X]`."""
        first, end = self.keys(block)
        if self.causal:
            return ops.pad(ops.concatenate([outside, inside], axis=1), [[0, 0], [0, self.length_k - end], [0, 0]])
        right = self.length_k - end
        return ops.concatenate([outside[:, right:], inside, outside[:, :right]], axis=1)
