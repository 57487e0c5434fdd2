"""The queries of a block, the keys that it reads, and the loop over blocks."""

from typing import Any, NamedTuple

from keras import backend, ops

from t2t_relpos._backend import clip_size, start_indices


class Segment(NamedTuple):
    """Consecutive blocks of queries that read the same keys.

    Args:
        start: first query.
        length: number of queries.
        block: number of queries of a block, C.
        count: number of blocks.
        num_keys: the blocks read keys 0 to `num_keys - 1`.
        number: number of the first block in the sequence.
    """

    start: Any
    length: Any
    block: Any
    count: Any
    num_keys: Any
    number: Any

    @property
    def is_single(self):
        """Whether the segment is known to have one block."""
        return isinstance(self.count, int) and self.count == 1

    def queries(self, x):
        """Returns the segment's queries, `[.., T, X]` -> `[.., blocks * C, X]`, zero-padded."""
        x = x[:, :, self.start : self.start + self.length]
        padding = self.count * self.block - self.length
        if isinstance(padding, int) and padding == 0:
            return x
        batch, heads, _, depth = ops.shape(x)
        zeros = ops.zeros((batch, heads, padding, depth), dtype=x.dtype)
        return ops.concatenate([x, zeros], axis=2)

    def keys(self, x, axis=2):
        """Returns the keys that the blocks read, of `[.., S, X]` or, with axis 3, `[.., S]`."""
        return x[:, :, : self.num_keys] if axis == 2 else x[..., : self.num_keys]

    def block_queries(self, x, start):
        """Returns the C queries from `start`, of `[.., blocks * C, X]`."""
        if self.is_single:
            return x
        if isinstance(start, int):
            return x[:, :, start : start + self.block]
        batch, heads, _, depth = ops.shape(x)
        start = start_indices(0, 0, start, 0)
        return ops.slice(x, start, (batch, heads, self.block, depth))

    def run(self, compute, buffers, totals):
        """Calls `compute` for all blocks of the segment, one after the other.

        Args:
            compute: function of the number of a block in this segment. It returns (rows, terms),
                two dicts. Rows `[B, N, C, X]` are written into the buffers with the same names;
                terms are added to the totals with the same names.
            buffers: dict of tensors `[B, N, blocks * C, X]`. Unused if `is_single`.
            totals: dict of tensors. Unused if `is_single`.

        Returns:
            (buffers cut to `length` rows, totals), dicts.
        """
        if self.is_single:
            return compute(0)

        def body(number, state):
            buffers, totals = state
            # With JAX_ENABLE_X64, it is int64.
            number = ops.cast(number, "int32")
            rows, terms = compute(number)
            position = start_indices(0, 0, number * self.block, 0)
            buffers = {
                name: ops.slice_update(x, position, rows[name]) for name, x in buffers.items()
            }
            return buffers, {name: x + terms[name] for name, x in totals.items()}

        buffers, totals = ops.fori_loop(0, self.count, body, (buffers, totals))
        return {name: x[:, :, : self.length] for name, x in buffers.items()}, totals


def make_segments(lengths, causal_offset, sizes, *, unrolled):
    """Returns the segments of all queries.

    Args:
        lengths: (T, S), ints; or scalar tensors if not `unrolled`.
        causal_offset: key position of query 0, if it is known and keys after a query are masked. A
            segment then reads the keys up to its last query. None: all keys.
        sizes: a `BlockSizes`.
        unrolled: whether every block is a segment.
    """
    length_q, length_k = lengths
    num_blocks = (length_q + sizes.block - 1) // sizes.block
    if not (isinstance(length_q, int) and isinstance(length_k, int)):
        # On JAX an unknown length is symbolic. Most comparisons with it are inconclusive.
        is_jax = backend.backend() == "jax"
        block = sizes.block if is_jax else clip_size(sizes.block, 1, length_q)
        return (Segment(0, length_q, block, num_blocks, length_k, 0),)
    num_blocks = max(1, min(num_blocks, sizes.max_blocks))
    block = -(-length_q // num_blocks)
    num_blocks = max(1, -(-length_q // max(block, 1)))
    num_segments = 1 if causal_offset is None else min(num_blocks, sizes.causal_segments)
    num_segments = num_blocks if unrolled else num_segments
    segments = []
    for index in range(num_segments):
        number = index * num_blocks // num_segments
        count = (index + 1) * num_blocks // num_segments - number
        start = number * block
        length = min(count * block, length_q - start)
        num_keys = length_k
        if causal_offset is not None:
            num_keys = clip_size(causal_offset + start + length, min(1, length_k), length_k)
        size = length if count == 1 else block
        segments.append(Segment(start, length, size, count, num_keys, number))
    return tuple(segments)


class KeyWindow(NamedTuple):
    """The keys of a block's band.

    Args:
        start: first key. All keys before it are in the left tail.
        width: number of keys.
        offset: position of the block's first query in the window.
        offset_range: smallest and largest offset in the segment. None: `offset` is an int.
    """

    start: Any
    width: Any
    offset: Any
    offset_range: Any

    @classmethod
    def of(cls, first_position, segment, max_relative_position, *, causal, first_position_range):
        """Returns the window of a block.

        Args:
            first_position: key position of the block's first query, an int or a scalar tensor.
            segment: the `Segment`.
            max_relative_position: K.
            causal: whether keys after a query are masked.
            first_position_range: smallest and largest `first_position` in the segment, or None if
                unknown.
        """
        k, block, num_keys = max_relative_position, segment.block, segment.num_keys
        span = block + (k - 1) * (1 if causal else 2)
        if isinstance(first_position, int) and isinstance(num_keys, int):
            start = clip_size(first_position - k + 1, 0, num_keys)
            width = clip_size(first_position - k + 1 + span, start, num_keys) - start
            return cls(start, width, first_position - start, None)
        width = clip_size(span, 0, num_keys)
        limits = 0, num_keys - width
        start = clip_size(first_position - k + 1, *limits)
        if first_position_range is None:
            offset_range = 1 - block - k, width - 1 + k
        else:
            # The offset never decreases from one block to the next.
            offset_range = [x - clip_size(x - k + 1, *limits) for x in first_position_range]
        return cls(start, width, first_position - start, tuple(offset_range))

    def slice_keys(self, x):
        """Returns the window of a tensor, `[.., num_keys]` -> `[.., width]`."""
        if isinstance(self.start, int):
            return x[..., self.start : self.start + self.width]
        batch, heads, rows, _ = ops.shape(x)
        return ops.slice(x, start_indices(0, 0, 0, self.start), (batch, heads, rows, self.width))

    def pad_to_keys(self, x, num_keys):
        """Pads a window with zeros, `[.., width]` -> `[.., num_keys]`.

        It is the transpose of `slice_keys`.
        """
        if isinstance(self.start, int):
            before, after = self.start, num_keys - self.start - self.width
            return ops.pad(x, [(0, 0)] * 3 + [(before, after)])
        batch, heads, rows, _ = ops.shape(x)
        zeros = ops.zeros((batch, heads, rows, num_keys), dtype=x.dtype)
        return ops.slice_update(zeros, start_indices(0, 0, 0, self.start), x)
