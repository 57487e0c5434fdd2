"""Scores of all pairs from scores by id, and sums of weights by id, without a gather.

Entries by relative id are expanded to all `T + S - 1` distances: the first and the last entry are
repeated for clipped distances. Rows are then reshaped to be one entry shorter. Each row thereby
starts one distance earlier than the previous row, as `j - i` requires.
"""

from t2t_relpos.attention.band import Runs
from t2t_relpos.attention.gather import (
    attend_by_index,
    attend_full_matrix,
    matmul_by_position,
    one_hot,
)
from t2t_relpos.attention.relative_ids import relative_ids
from t2t_relpos.backend import (
    arange,
    can_slice,
    is_portable,
    matmul,
    ops,
    start_indices,
    write_slice,
)


def attend_by_id(call):
    """Returns the `Results` of the full matrix, without a gather if there is one query offset."""
    if not call.has_one_offset:
        return attend_by_index(call)
    distances, length_k, offset = call.distances, call.length_k, call.query_offset
    return attend_full_matrix(
        call,
        lambda by_id: expand_ids(by_id, distances, length_k, offset),
        lambda weights: sum_by_id(weights, distances, offset),
    )


def expand_ids(by_id, distances, length_k, query_offset, offset_range=None):
    """Returns `out[.., i, j] = by_id[.., i, id of (i, j)]`.

    Args:
        by_id: `[B, N, T, R]`.
        distances: the `Distances` of the ids.
        length_k: number of keys S, an int or a scalar tensor.
        query_offset: key position of query 0, an int or a scalar tensor.
        offset_range: the smallest and the largest `query_offset` that a loop has. Default: None.

    Returns:
        `[B, N, T, S]`.
    """
    batch, heads, length_q, num_ids = ops.shape(by_id)
    if num_ids == 1:
        return _repeat_column(by_id, 0, length_k)
    if isinstance(length_q, int) and length_q == 0:
        return ops.zeros((batch, heads, 0, length_k), dtype=by_id.dtype)
    if offset_range is None and not can_slice(length_q, length_k, query_offset):
        if is_portable() or can_slice(length_q, length_k):
            return _expand_by_columns(by_id, distances, length_k, query_offset)
        ids = relative_ids(length_q, length_k, distances, query_offset)
        ids = ops.broadcast_to(ids, (batch, heads, length_q, length_k))
        return ops.take_along_axis(by_id, ids, axis=-1)
    sizes = length_q, length_k, query_offset
    (runs, first), num_columns, start = _columns(distances, *sizes, offset_range)
    # The shift needs one column more than there are distances.
    width = length_q + length_k
    expanded = ops.concatenate(
        [
            _repeat_column(by_id, 0, runs.start),
            by_id[..., first : first + runs.width],
            _repeat_column(by_id, num_ids - 1, num_columns - runs.start - runs.width),
        ],
        axis=-1,
    )
    if start is not None:
        shape = batch, heads, length_q, width
        expanded = ops.slice(expanded, start_indices(0, 0, 0, start), shape)
    flat = ops.reshape(expanded, (batch, heads, length_q * width))
    flat = flat[..., length_q - 1 : length_q - 1 + length_q * (width - 1)]
    return ops.reshape(flat, (batch, heads, length_q, width - 1))[..., :length_k]


def sum_by_id(weights, distances, query_offset, offset_range=None):
    """Returns `out[.., i, r]`, the sum of `weights[.., i, j]` over the keys j with id r.

    The transpose of `expand_ids`.

    Args:
        weights: `[B, N, T, S]`.
        distances: the `Distances` of the ids.
        query_offset: key position of query 0, an int or a scalar tensor.
        offset_range: as in `expand_ids`.

    Returns:
        `[B, N, T, R]`.
    """
    (batch, heads, length_q, length_k), num_ids = ops.shape(weights), distances.num_ids
    if num_ids == 1:
        return ops.sum(weights, axis=-1, keepdims=True)
    if offset_range is None and not can_slice(length_q, length_k, query_offset):
        if is_portable() or can_slice(length_q, length_k):
            return _sum_by_columns(weights, distances, query_offset)
        ids = relative_ids(length_q, length_k, distances, query_offset)
        return matmul_by_position(weights, ops.one_hot(ids, num_ids, dtype=weights.dtype))
    sizes = length_q, length_k, query_offset
    (runs, first), num_columns, start = _columns(distances, *sizes, offset_range)
    left, last, end = runs.start, first + runs.width, runs.start + runs.width
    width = length_q + length_k
    padded = pad_columns(weights, 0, length_q - 1)
    flat = ops.reshape(padded, (batch, heads, length_q * (width - 1)))
    flat = pad_columns(flat, length_q - 1, 1)
    by_distance = ops.reshape(flat, (batch, heads, length_q, width))
    if start is not None:
        zeros = ops.zeros((batch, heads, length_q, num_columns), dtype=weights.dtype)
        by_distance = write_slice(zeros, by_distance, start, axis=3)
    is_known = all(isinstance(n, int) for n in (left, first, last))
    if is_known and first == 0 and last == num_ids:
        # Each tail with its own id in one sum.
        tails = by_distance[..., : left + 1], by_distance[..., end - 1 : num_columns - 1]
        left_tail, right_tail = (ops.sum(x, axis=-1, keepdims=True) for x in tails)
        within = by_distance[..., left + 1 : end - 1]
        return ops.concatenate([left_tail, within, right_tail], axis=-1)
    left_tail = _sum_columns(by_distance, 0, left)
    right_tail = _sum_columns(by_distance, end, num_columns - 1)
    sums = pad_columns(by_distance[..., left:end], first, num_ids - last)
    return ops.concatenate(
        [sums[..., :1] + left_tail, sums[..., 1:-1], sums[..., -1:] + right_tail], axis=-1
    )


def _columns(distances, length_q, length_k, query_offset, offset_range):
    """Returns (result of `Runs.of_distances`, number of columns, first column of the offset).

    There is one column more than distances. With a range of offsets, columns are those of all
    offsets, and the T + S columns of one offset begin at a traced column. Otherwise, it is None.
    """
    if offset_range is None:
        runs = Runs.of_distances(distances, length_q, length_k, query_offset)
        return runs, length_q + length_k, None
    smallest, largest = offset_range
    length_k = length_k + largest - smallest
    start = largest - ops.clip(ops.cast(query_offset, "int32"), smallest, largest)
    runs = Runs.of_distances(distances, length_q, length_k, largest)
    return runs, length_q + length_k, start


# In exports of unknown lengths, and for traced offsets, each column has an id. Slices of unknown
# sizes, and sizes such as T - 1, would make PyTorch's exports refuse some lengths.


def _expand_by_columns(by_id, distances, length_k, query_offset):
    """Returns `expand_ids` for lengths and offsets that are tensors or symbols."""
    batch, heads, length_q, _ = ops.shape(by_id)
    ids = _ids_of_columns(length_q, length_k, distances, query_offset)
    # A gather of columns takes about twice the time of this product in ONNX Runtime.
    columns = one_hot(ids, distances.num_ids, by_id.dtype)
    expanded = matmul(by_id, ops.swapaxes(columns, 0, 1))
    width = length_q + length_k
    flat = ops.reshape(expanded, (batch, heads, length_q * (width + 1)))[..., length_q:]
    return ops.reshape(flat, (batch, heads, length_q, width))[..., :length_k]


def _sum_by_columns(weights, distances, query_offset):
    """Returns `sum_by_id` for lengths and offsets that are tensors or symbols."""
    batch, heads, length_q, length_k = ops.shape(weights)
    ids = _ids_of_columns(length_q, length_k, distances, query_offset)
    width = length_q + length_k
    zeros = ops.zeros((batch, heads, length_q, length_q), dtype=weights.dtype)
    flat = ops.reshape(ops.concatenate([weights, zeros], axis=-1), (batch, heads, length_q * width))
    flat = ops.concatenate([zeros[:, :, 0], flat], axis=-1)
    by_column = ops.reshape(flat, (batch, heads, length_q, width + 1))
    return matmul(by_column, one_hot(ids, distances.num_ids, weights.dtype))


def _ids_of_columns(length_q, length_k, distances, query_offset):
    """Returns the ids `[T + S + 1]` of the distances from `-T - query_offset` on."""
    distance = arange(length_q + length_k + 1) - (length_q + query_offset)
    return ops.clip(distance, -distances.left, distances.right) + distances.left


def pad_columns(x, before, after):
    """Returns `[.., X]` with zeros before and after the entries of the last axis."""
    if isinstance(before, int) and isinstance(after, int) and not is_portable():
        if before == after == 0:
            return x
        return ops.pad(x, [*[(0, 0)] * (len(x.shape) - 1), (before, after)])
    # Not every converter supports padding by sizes that are tensors.
    lead = ops.shape(x)[:-1]
    first, last = (ops.zeros((*lead, size), dtype=x.dtype) for size in (before, after))
    return ops.concatenate([first, x, last], axis=-1)


def _sum_columns(x, start, stop):
    """Returns the sums over the columns from `start` to `stop` of the last axis, possibly none."""
    if is_portable():
        # LiteRT, and ONNX Runtime before 1.32, compute wrong sums over an empty slice.
        columns = arange(ops.shape(x)[-1])
        is_summed = ops.logical_and(columns >= start, columns < stop)
        return ops.sum(x * ops.cast(is_summed, x.dtype), axis=-1, keepdims=True)
    return ops.sum(x[..., start:stop], axis=-1, keepdims=True)


def _repeat_column(by_id, column, count):
    """Returns a column of `[.., T, R]` repeated `count` times, `[.., T, count]`."""
    shape = list(ops.shape(by_id))
    return ops.broadcast_to(by_id[..., column : column + 1], (*shape[:-1], count))
