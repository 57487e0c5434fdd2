"""Relative scores and values by padding, reshaping and slicing, without a `[T, S, H]` tensor.

Entries by relative id are expanded to all `T + S - 1` distances, clipped ends repeated. Reshaped to
rows that are one entry shorter, each row starts one entry later than the previous one, as `j - i`
requires.
"""

from keras import backend, ops

from t2t_relpos.attention.relative_ids import relative_ids
from t2t_relpos.attention.table_matmul import matmul_by_position, matmul_table


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


def expand_ids(by_id, length_k, query_offset):
    """Returns `out[.., i, j] = by_id[.., i, id of (i, j)]`.

    Args:
        by_id: `[B, N, T, 2K + 1]`.
        length_k: number of keys S, an int or a scalar tensor.
        query_offset: key position of query 0, an int or a scalar tensor.

    Returns:
        `[B, N, T, S]`.
    """
    batch, heads, length_q, num_ids = ops.shape(by_id)
    if num_ids == 1:
        return _repeat_column(by_id, 0, length_k)
    if not _can_slice(length_q, length_k, query_offset):
        ids = relative_ids(length_q, length_k, (num_ids - 1) // 2, query_offset)
        ids = ops.broadcast_to(ids, (batch, heads, length_q, length_k))
        return ops.take_along_axis(by_id, ids, axis=-1)
    left, first, last, right = _distances(length_q, length_k, num_ids, query_offset)
    width = length_q + length_k - 1
    # One column more than there are distances: room for the shift.
    expanded = ops.concatenate(
        [
            _repeat_column(by_id, 0, left),
            by_id[..., first:last],
            _repeat_column(by_id, num_ids - 1, right + 1),
        ],
        axis=-1,
    )
    flat = ops.reshape(expanded, (batch, heads, length_q * (width + 1)))
    flat = flat[..., length_q - 1 : length_q - 1 + length_q * width]
    return ops.reshape(flat, (batch, heads, length_q, width))[..., :length_k]


def sum_by_id(weights, num_ids, query_offset):
    """Returns `out[.., i, r]`, the sum of `weights[.., i, j]` over the keys j with id r.

    The transpose of `expand_ids`.

    Args:
        weights: `[B, N, T, S]`.
        num_ids: number of table rows, 2K + 1.
        query_offset: key position of query 0, an int or a scalar tensor.

    Returns:
        `[B, N, T, 2K + 1]`.
    """
    batch, heads, length_q, length_k = ops.shape(weights)
    if num_ids == 1:
        return ops.sum(weights, axis=-1, keepdims=True)
    if not _can_slice(length_q, length_k, query_offset):
        ids = relative_ids(length_q, length_k, (num_ids - 1) // 2, query_offset)
        return matmul_by_position(weights, ops.one_hot(ids, num_ids, dtype=weights.dtype))
    left, first, last, right = _distances(length_q, length_k, num_ids, query_offset)
    width = length_q + length_k - 1

    def zeros(*shape):
        return ops.zeros((batch, heads, *shape), dtype=weights.dtype)

    padded = ops.concatenate([weights, zeros(length_q, length_q - 1)], axis=-1)
    flat = ops.reshape(padded, (batch, heads, length_q * width))
    flat = ops.concatenate([zeros(length_q - 1), flat, zeros(1)], axis=-1)
    by_distance = ops.reshape(flat, (batch, heads, length_q, width + 1))
    band = by_distance[..., left : width - right]
    left_tail = ops.sum(by_distance[..., :left], axis=-1, keepdims=True)
    right_tail = ops.sum(by_distance[..., width - right :], axis=-1, keepdims=True)
    sums = ops.concatenate([zeros(length_q, first), band, zeros(length_q, num_ids - last)], axis=-1)
    return ops.concatenate(
        [sums[..., :1] + left_tail, sums[..., 1:-1], sums[..., -1:] + right_tail], axis=-1
    )


def _can_slice(*sizes):
    """Whether slices may have these sizes: JAX needs ints, and has symbols and traced offsets."""
    return backend.backend() == "tensorflow" or all(isinstance(n, int) for n in sizes)


def _distances(length_q, length_k, num_ids, query_offset):
    """Counts the distances that occur, from `-(T - 1) - offset` to `S - 1 - offset`.

    Returns:
        (number clipped at the left, first id that occurs, last id that occurs + 1, number clipped
        at the right).
    """
    k = (num_ids - 1) // 2
    total = length_q + length_k - 1
    lowest = 1 - length_q - query_offset
    highest = length_k - 1 - query_offset
    if all(isinstance(n, int) for n in (length_q, length_k, query_offset)):
        minimum, maximum = min, max
    else:
        minimum, maximum = ops.minimum, ops.maximum
    left = maximum(0, minimum(total, -k - lowest))
    right = maximum(0, minimum(total, highest - k))
    first = maximum(0, minimum(2 * k + 1, lowest + k))
    return left, first, first + (total - left - right), right


def _repeat_column(by_id, column, count):
    """Returns a column of `[.., T, R]` repeated `count` times, `[.., T, count]`."""
    shape = list(ops.shape(by_id))
    return ops.broadcast_to(by_id[..., column : column + 1], (*shape[:-1], count))
