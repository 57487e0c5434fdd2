"""Relative scores and values by padding, reshaping and slicing, without a `[T, S, H]` tensor.

Entries by relative id are expanded to all `T + S - 1` distances: the first and the last entry are
repeated for clipped distances. Rows are then reshaped to be one entry shorter. Each row thereby
starts one distance earlier than the previous row, as `j - i` requires.
"""

from typing import Any, NamedTuple

from keras import ops

from t2t_relpos.attention.gather import (
    attend_with_terms,
    expand_by_one_hot,
    matmul_by_position,
    matmul_table,
    sum_by_one_hot,
)
from t2t_relpos.attention.relative_ids import relative_ids
from t2t_relpos.backend import (
    arange,
    can_slice,
    clip_size,
    is_portable,
    start_indices,
    write_slice,
)


def attend_by_band(call):
    """Returns (outputs, weights) of the full matrix, without a gather."""
    length_k, offset = call.length_k, call.query_offset
    return attend_with_terms(
        call,
        lambda query, table: relative_scores(query, table, length_k, offset),
        lambda weights, table: relative_values(weights, table, offset),
    )


def relative_scores(query, table, length_k, query_offset):
    """Returns `q·a^K`.

    Args:
        query: `[B, N, T, H]`.
        table: `[2K + 1, H]` or `[N, 2K + 1, H]`.
        length_k: number of keys S, an int or a scalar tensor.
        query_offset: key position of query 0, an int or a scalar tensor.

    Returns:
        `[B, N, T, S]`.
    """
    return expand_ids(matmul_table(query, table, transpose_table=True), length_k, query_offset)


def relative_values(weights, table, query_offset):
    """Returns `weights·a^V`.

    Args:
        weights: `[B, N, T, S]`.
        table: `[2K + 1, H]` or `[N, 2K + 1, H]`.
        query_offset: key position of query 0, an int or a scalar tensor.

    Returns:
        `[B, N, T, H]`.
    """
    return matmul_table(sum_by_id(weights, table.shape[-2], query_offset), table)


def expand_ids(by_id, length_k, query_offset, offset_range=None):
    """Returns `out[.., i, j] = by_id[.., i, id of (i, j)]`.

    Args:
        by_id: `[B, N, T, 2K + 1]`.
        length_k: number of keys S, an int or a scalar tensor.
        query_offset: key position of query 0, an int or a scalar tensor.
        offset_range: the smallest and the largest value that a traced `query_offset` can have.
            Default: any value.

    Returns:
        `[B, N, T, S]`.
    """
    batch, heads, length_q, num_ids = ops.shape(by_id)
    if num_ids == 1:
        return _repeat_column(by_id, 0, length_k)
    if isinstance(length_q, int) and length_q == 0:
        return ops.zeros((batch, heads, 0, length_k), dtype=by_id.dtype)
    if offset_range is None and not can_slice(length_q, length_k):
        ids = relative_ids(length_q, length_k, (num_ids - 1) // 2, query_offset)
        if is_portable():
            return expand_by_one_hot(by_id, ids)
        ids = ops.broadcast_to(ids, (batch, heads, length_q, length_k))
        return ops.take_along_axis(by_id, ids, axis=-1)
    distances = _Distances.of(length_q, length_k, num_ids, query_offset, offset_range)
    # The shift needs one column more than there are distances.
    width = length_q + length_k
    expanded = ops.concatenate(
        [
            _repeat_column(by_id, 0, distances.left),
            by_id[..., distances.first : distances.last],
            _repeat_column(by_id, num_ids - 1, distances.right + 1),
        ],
        axis=-1,
    )
    if distances.start is not None:
        start = start_indices(0, 0, 0, distances.start)
        expanded = ops.slice(expanded, start, (batch, heads, length_q, width))
    flat = ops.reshape(expanded, (batch, heads, length_q * width))
    flat = flat[..., length_q - 1 : length_q - 1 + length_q * (width - 1)]
    return ops.reshape(flat, (batch, heads, length_q, width - 1))[..., :length_k]


def sum_by_id(weights, num_ids, query_offset, offset_range=None):
    """Returns `out[.., i, r]`, the sum of `weights[.., i, j]` over the keys j with id r.

    The transpose of `expand_ids`.

    Args:
        weights: `[B, N, T, S]`.
        num_ids: number of table rows, 2K + 1.
        query_offset: key position of query 0, an int or a scalar tensor.
        offset_range: as in `expand_ids`.

    Returns:
        `[B, N, T, 2K + 1]`.
    """
    batch, heads, length_q, length_k = ops.shape(weights)
    if num_ids == 1:
        return ops.sum(weights, axis=-1, keepdims=True)
    if offset_range is None and not can_slice(length_q, length_k):
        ids = relative_ids(length_q, length_k, (num_ids - 1) // 2, query_offset)
        if is_portable():
            return sum_by_one_hot(weights, ids, num_ids)
        return matmul_by_position(weights, ops.one_hot(ids, num_ids, dtype=weights.dtype))
    left, first, last, right, start = _Distances.of(
        length_q, length_k, num_ids, query_offset, offset_range
    )
    width = length_q + length_k

    def zeros(*shape):
        return ops.zeros((batch, heads, *shape), dtype=weights.dtype)

    padded = ops.concatenate([weights, zeros(length_q, length_q - 1)], axis=-1)
    flat = ops.reshape(padded, (batch, heads, length_q * (width - 1)))
    flat = ops.concatenate([zeros(length_q - 1), flat, zeros(1)], axis=-1)
    by_distance = ops.reshape(flat, (batch, heads, length_q, width))
    end = left + last - first
    if start is not None:
        row = zeros(length_q, end + right + 1)
        by_distance = write_slice(row, by_distance, start, axis=3)
    left_tail = _sum_columns(by_distance, 0, left)
    right_tail = _sum_columns(by_distance, end, end + right)
    parts = [zeros(length_q, first), by_distance[..., left:end], zeros(length_q, num_ids - last)]
    sums = ops.concatenate(parts, axis=-1)
    return ops.concatenate(
        [sums[..., :1] + left_tail, sums[..., 1:-1], sums[..., -1:] + right_tail], axis=-1
    )


def _sum_columns(x, start, stop):
    """Returns the sums over the columns from `start` to `stop` of the last axis, possibly none."""
    if is_portable():
        # LiteRT, and ONNX Runtime before 1.32, compute wrong sums over an empty slice.
        columns = arange(ops.shape(x)[-1])
        is_summed = ops.logical_and(columns >= start, columns < stop)
        return ops.sum(x * ops.cast(is_summed, x.dtype), axis=-1, keepdims=True)
    return ops.sum(x[..., start:stop], axis=-1, keepdims=True)


class _Distances(NamedTuple):
    """Counts of the distances that occur between any query and any key.

    Args:
        left: number of distances clipped at the left.
        first: first id that is not repeated.
        last: last id that is not repeated, plus 1.
        right: number of distances clipped at the right.
        start: if the offset is traced, the index of the first distance of this call among the
            distances of all offsets in the range. None: 0.
    """

    left: Any
    first: Any
    last: Any
    right: Any
    start: Any

    @classmethod
    def of(cls, length_q, length_k, num_ids, query_offset, offset_range):
        """Returns the counts. The arguments are those of `expand_ids`."""
        k, start = (num_ids - 1) // 2, None
        if isinstance(query_offset, int) or (offset_range is None and can_slice(query_offset)):
            smallest = largest = query_offset
        else:
            # Beyond these offsets, all keys have the first or the last id.
            limits = 1 - length_q - k, length_k - 1 + k
            smallest, largest = (clip_size(x, *limits) for x in offset_range or limits)
            start = largest - ops.clip(ops.cast(query_offset, "int32"), smallest, largest)
        lowest, highest = 1 - length_q - largest, length_k - 1 - smallest
        total = highest - lowest + 1
        left = clip_size(-k - lowest, 0, total)
        right = clip_size(highest - k, 0, total)
        first = clip_size(lowest + k, 0, num_ids)
        return cls(left, first, first + (total - left - right), right, start)


def _repeat_column(by_id, column, count):
    """Returns a column of `[.., T, R]` repeated `count` times, `[.., T, count]`."""
    shape = list(ops.shape(by_id))
    return ops.broadcast_to(by_id[..., column : column + 1], (*shape[:-1], count))
