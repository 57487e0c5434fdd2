"""Clipping distances, and where the runs of a score matrix lie.

The distance of a query at key position p and a key at position j is `j - p`. Distances of at most
`-left` have the first table row: their pairs form the *left tail* of the score matrix. Distances of
at least `right` have the last row, and form the *right tail*. The distances between them form the
*band*: each has a separate diagonal and row. Causal attention has no right tail.

For consecutive queries, the keys form three *runs* (`Runs`). The *window* has the keys of the band
of at least one of these queries. All keys before it are in the left tail of all of them, and all
keys after it in the right tail. `flash` divides the tails differently, into parts that a kernel
computes (`TailPart`).

Softmax does not change if a number is subtracted from all scores of a query. Blocks therefore use
`difference_rows`, which are zero in one of the tails.

`blocks`, `by_id` and `flash` take their runs from here. The engine of TensorFlow takes the ranges
of keys, the masks and `difference_rows`, and splits the left tail into chunks (`diagonals`). The
kernel of `fused` has other limits, in whole blocks of keys.

Sizes and positions are ints, scalar tensors or, on JAX, symbolic lengths.
"""

from typing import Any, NamedTuple

from t2t_relpos.backend import arange, clip_size, ops

# All pairs at this distance are clipped, and its sum with any length fits into int32.
FARTHEST = 2**30


class Distances(NamedTuple):
    """The clipping distances of a table.

    Args:
        left: an int of at least 0.
        right: an int of at least 0.
    """

    left: int
    right: int

    @classmethod
    def of(cls, max_relative_position):
        """Returns the distances of an int, for both sides, or of a pair (left, right)."""
        if isinstance(max_relative_position, (tuple, list)):
            return cls(*max_relative_position)
        return cls(max_relative_position, max_relative_position)

    @property
    def num_ids(self):
        """R, the number of relative ids."""
        return self.left + self.right + 1

    def extended(self, left=1, right=1):
        """Returns distances of at least these. There is a band if both are at least 1."""
        return Distances(max(self.left, left), max(self.right, right))

    def cut(self, left, right):
        """Returns distances that are cut to those that occur, plus one: they clip no further pair.

        Args:
            left: largest distance of a key before its query, an int. Negative if there is none.
            right: the same after the query.
        """
        return Distances(*(min(old, max(new, 0) + 1) for old, new in zip(self, (left, right))))

    def keys_between(self, first_position, num_queries):
        """Returns (first key, end) of the keys at distances of a query between these, exclusive.

        A key counts if it is between the distances, which are at least 1, of one of the queries.
        Not all of the keys may exist.

        Args:
            first_position: key position of the first query.
            num_queries: number of queries.
        """
        return first_position - self.left + 1, first_position + num_queries - 1 + self.right

    def existing_keys(self, first_position, num_queries, num_keys):
        """Returns (first key, end): those of `keys_between` that are 0 to `num_keys - 1`."""
        first, end = self.keys_between(first_position, num_queries)
        end = num_keys if self.right >= FARTHEST else clip_size(end, 0, num_keys)
        return 0 if self.left >= FARTHEST else clip_size(first, 0, end), end

    def block_keys(self, first_position, num_queries, num_keys):
        """Returns (first key, number of keys): `existing_keys` and, near the ends, further keys.

        The number is the same for all positions, as in the blocks of a loop.
        """
        first, end = self.keys_between(0, num_queries)
        width = clip_size(end - first, 0, num_keys)
        return clip_size(first_position + first, 0, num_keys - width), width

    def masks(self, queries, keys):
        """Returns a list of bool masks: whether keys are at distances between these, exclusive.

        There is a mask for each distance below `FARTHEST`. They broadcast like the positions.

        Args:
            queries: int32 key positions of the queries, `[queries, 1]`.
            keys: int32 key positions, `[S]`.
        """
        masks = []
        if self.right < FARTHEST:
            last = queries if self.right == 1 else queries + (self.right - 1)
            masks.append(keys <= last)
        if self.left < FARTHEST:
            masks.append(keys > queries - self.left)
        return masks


def masked_distances(call):
    """Returns the `Distances` of the nearest keys that are masked by causality or sliding window.

    A query attends to the keys between them. `FARTHEST` stands for no limit.
    """
    farthest = FARTHEST if call.sliding_window is None else call.sliding_window
    return Distances(farthest, 1 if call.causal else farthest)


class Runs(NamedTuple):
    """The runs of the keys of consecutive queries.

    Args:
        start: first key of the window. All keys before it are far to the left of all queries.
        width: number of keys of the window. All keys after them are far to the right.
        position: position of the first query among the keys of the window.
        position_range: the smallest and the largest position of the blocks of a loop. Default:
            None, the position is an int, or there is no loop.
    """

    start: Any
    width: Any
    position: Any
    position_range: Any = None

    @classmethod
    def of(cls, distances, first_position, num_queries, num_keys):
        """Returns the runs of existing keys. The sizes are ints or, on TensorFlow, tensors.

        Args:
            distances: the `Distances`, at least 1.
            first_position: key position of the first query.
            num_queries: number of queries.
            num_keys: number of keys.
        """
        start, end = distances.existing_keys(first_position, num_queries, num_keys)
        return cls(start, end - start, first_position - start)

    @classmethod
    def of_block(cls, distances, first_position, num_queries, num_keys, ends=None):
        """Returns the runs of a block at any position. The window has the same width for all.

        At the ends of the sequence, the window contains keys of the tails.

        Args:
            distances: as in `of`.
            first_position: as in `of`, may be a tensor.
            num_queries: as in `of`.
            num_keys: as in `of`.
            ends: smallest and largest `first_position` of the loop. Default: None, any.
        """
        start, width = distances.block_keys(first_position, num_queries, num_keys)
        # Beyond these limits, no key of the window has a separate row.
        limits = 1 - num_queries - distances.right, width - 1 + distances.left
        if ends is not None:
            # The position in the window never decreases, so that the ends have its extremes.
            limits = tuple(x - distances.block_keys(x, num_queries, num_keys)[0] for x in ends)
        return cls(start, width, first_position - start, limits)

    @classmethod
    def of_distances(cls, distances, length_q, length_k, query_offset):
        """Returns (runs of all distances between a query and a key, first id of the window).

        The distances, in ascending order, are those of one query to T + S - 1 keys. This window
        includes the distances `-left` and `right`: each has a separate id.
        """
        position = length_q - 1 + query_offset
        inclusive = Distances(distances.left + 1, distances.right + 1)
        runs = cls.of(inclusive, position, 1, length_q + length_k - 1)
        return runs, clip_size(distances.left - runs.position, 0, distances.num_ids)


class TailPart(NamedTuple):
    """Consecutive queries and keys. All pairs that attend have the first id, or all the last one.

    With a sliding window, it is split into blocks of one size: block n of the queries attends to
    block n of the keys. Queries and keys that do not exist are padding.

    Args:
        side: "left" for the first id, "right" for the last one.
        first_query: its first query.
        num_queries: number of its queries.
        first_key: its first key.
        num_keys: number of its keys.
        is_causal: whether query i of a block attends to its keys 0 to i only, in the order of
            `order`. Otherwise, all queries attend to all keys.
        is_reversed: whether `order` reverses the sequence.
        num_blocks: number of blocks.
    """

    side: str
    first_query: int
    num_queries: int
    first_key: int
    num_keys: int
    is_causal: bool
    is_reversed: bool = False
    num_blocks: int = 1

    def queries(self, x):
        """Returns the queries of the part, `[B, N, T, X]` -> `[B, N, queries, X]`."""
        return slice_padded(x, self.first_query, self.num_queries, axis=2)

    def keys(self, x, axis=2):
        """Returns the keys of the part, `[B, N, S, X]` -> `[B, N, keys, X]`."""
        return slice_padded(x, self.first_key, self.num_keys, axis)

    def pad_queries(self, x, length_q):
        """The transpose of `queries`: `[B, N, queries, X]` padded with zeros, `[B, N, T, X]`."""
        return slice_padded(x, -self.first_query, length_q, axis=2)

    def order(self, x, axis=2):
        """Converts between the order of the sequence and that in which the part is causal."""
        return ops.flip(x, axis) if self.is_reversed else x

    def split(self, x):
        """Returns queries or keys of the part `[B, N, size, X]`, ordered, as a kernel reads them.

        If there are several blocks, each head is a batch entry, and has the blocks as heads.
        """
        x = self.order(x)
        if self.num_blocks == 1:
            return x
        shape = -1, self.num_blocks, x.shape[2] // self.num_blocks, x.shape[3]
        # On PyTorch, x needs no copy if it was not copied before. Otherwise, results need none.
        return ops.reshape(x, (-1, 1, *shape[2:]) if self.is_reversed else shape)

    def join(self, x, heads):
        """Inverts `split`, for a number of heads."""
        if self.num_blocks > 1:
            x = ops.reshape(x, (-1, heads, x.shape[2] * self.num_blocks, x.shape[3]))
        return self.order(x)

    def has_key(self, call):
        """Returns whether its queries may attend to one of its keys, `[1 or B, 1, queries, 1]`."""
        if call.key_mask is None:
            return ops.ones((1, 1, self.num_queries, 1), dtype="bool")
        queries, keys = (x // self.num_blocks for x in (self.num_queries, self.num_keys))
        mask = self.order(self.keys(call.key_mask, 1), 1)
        mask = ops.reshape(mask, (-1, self.num_blocks, keys))
        # Versions of JAX compile a cumulative sum to different operations, some of them slow.
        first_key = ops.min(ops.where(mask, arange(keys), keys), axis=-1, keepdims=True)
        last_key = (
            arange(queries) if self.is_causal else ops.full((queries,), keys - 1, dtype="int32")
        )
        return self.order(ops.reshape(last_key >= first_key, (-1, 1, self.num_queries, 1)))


def tail_parts(call, distances):
    """Returns the list of `TailPart`s of an `AttentionCall`, first those of the left tail.

    Lengths and the query offset are ints. A call with a sliding window and with queries before or
    after all keys has a `key_mask`.

    Args:
        call: the call.
        distances: `Distances` of at least 1, and at most the sliding window. If causal, `right` is
            not used.
    """
    sizes, (left, right) = (call.length_q, call.length_k), distances
    masked = masked_distances(call)
    parts = _parts_of_tail("left", *sizes, left - call.query_offset, masked.left - left)
    if not call.causal:
        # In reverse order, a right tail is a left tail.
        opposite = call.length_k - call.length_q - call.query_offset
        parts += _parts_of_tail("right", *sizes, right - opposite, masked.right - right)
    return parts


def _parts_of_tail(side, length_q, length_k, shift, width):
    """Returns the parts of a tail. Query i attends to the last `width` keys up to i - shift.

    Args:
        side: "left", or "right" in reverse order.
        length_q: T.
        length_k: S.
        shift: distance from a query to the nearest key that it attends to.
        width: number of the keys that a query attends to. Some may not exist.
    """
    if width >= length_q - shift:
        found = _parts_without_window(length_q, length_k, shift)
    else:
        found = _parts_in_blocks(length_q, length_k, shift, width)
    parts = [TailPart(side, *part) for part in found]
    parts = [part for part in parts if part.num_queries > 0 and part.num_keys > 0]
    if side == "left":
        return parts
    return [
        part._replace(
            first_query=length_q - part.first_query - part.num_queries,
            first_key=length_k - part.first_key - part.num_keys,
            is_reversed=not part.is_reversed,
        )
        for part in parts
    ]


def _parts_without_window(length_q, length_k, shift):
    """Returns the fields of the parts of a tail without a sliding window."""
    first_query, first_key = max(shift, 0), min(max(-shift, 0), length_k)
    size = min(length_q - first_query, length_k - first_key)
    later = length_q - first_query - size
    return [
        (0, length_q, 0, first_key, False),  # keys before the triangle
        (first_query, size, first_key, size, True),
        (first_query + size, later, first_key, size, False),  # queries after it
    ]


def _parts_in_blocks(length_q, length_k, shift, width):
    """Returns the fields of the parts of a tail with a sliding window.

    There are two: one has keys of the block of a query, the other those of the block before it. See
    *Sliding windows* in docs/how_it_works/algorithms.md.
    """
    size = width - 1
    if size < 1:
        return []
    first_key = -shift if -shift >= size else 0
    earlier_key = max(first_key - size, 0)
    starts = (first_key + shift, first_key), (earlier_key + size + shift, earlier_key)
    parts = []
    for is_earlier, (query, key) in enumerate(starts):
        num_blocks = max(min(length_q - query, length_k - key), 0) // size
        total = num_blocks * size
        parts.append((query, total, key, total, True, bool(is_earlier), num_blocks))
        query, key = query + total, key + total
        if query < length_q and key < length_k:
            last = size if is_earlier else min(size, length_q - query)
            parts.append((query, last, key, last, True, bool(is_earlier)))
    return parts


def slice_padded(x, start, size, axis):
    """Returns `size` entries of an axis from `start` on, with zeros where there are none."""
    length = x.shape[axis]
    first, end = (clip_size(position, 0, length) for position in (start, start + size))
    kept = max(end - first, 0)
    if kept < length:
        x = x[(*[slice(None)] * axis, slice(first, first + kept))]
    if kept == size:
        return x
    before = clip_size(-start, 0, size)
    widths = [(0, 0)] * len(x.shape)
    widths[axis] = before, size - before - kept
    return ops.pad(x, widths)


def resize_table(table, distances, others):
    """Returns the rows of a table for other distances. Larger ones repeat its end rows.

    Args:
        table: `[.., R, H]`.
        distances: the `Distances` of the table.
        others: those of the result.
    """
    left, right = others.left - distances.left, others.right - distances.right
    rows = table[..., max(-left, 0) : distances.num_ids + min(right, 0), :]
    if left <= 0 and right <= 0:
        return rows
    first, last = table[..., :1, :], table[..., -1:, :]
    return ops.concatenate([*left * [first], rows, *right * [last]], axis=-2)


def with_zero_rows(table):
    """Returns a table `[.., R, H]` with a row of zeros at both ends, for all larger distances."""
    return ops.pad(table, [*[(0, 0)] * (len(table.shape) - 2), (1, 1), (0, 0)])


def difference_rows(table, *, causal):
    """Returns (rows minus the reference row `[.., R - 1, H]`, reference row `[.., 1, H]`).

    The reference row is the rightmost row, or the leftmost one if causal. Difference rows have the
    order of the table, from left to right. Softmax ignores the reference row; values add it once
    per query, times the sum of the weights.

    Args:
        table: `[R, H]` or `[N, R, H]`. If causal, its last row is that of distance 0.
        causal: whether keys after a query are masked.
    """
    if causal:
        reference, others = ops.split(table, [1], axis=-2)
    else:
        others, reference = ops.split(table, [table.shape[-2] - 1], axis=-2)
    return others - reference, reference
