"""Relative scores and values by gathering: for short sequences and for arbitrary relative ids."""

import math

import keras
from keras import ops

from t2t_relpos._backend import accumulation_dtype
from t2t_relpos._portable import arange, is_portable
from t2t_relpos.attention.table_matmul import matmul_by_position, matmul_table


def scores_by_rows(query, table, ids):
    """Returns `out[b, n, i, j] = query[b, n, i]·table[ids[i, j]]`.

    Gathers a `[T, S, H]` tensor of table rows. For each query position, one product multiplies its
    rows with all batch entries and, if the table is shared, with all heads.

    Args:
        query: `[B, N, T, H]`.
        table: `[R, H]` for all heads or `[N, R, H]`.
        ids: int `[T, S]`.

    Returns:
        `[B, N, T, S]`.
    """
    return matmul_by_position(query, ops.swapaxes(_gather_rows(table, ids), -1, -2))


def values_by_rows(weights, table, ids):
    """Returns `out[b, n, i] = sum over j of weights[b, n, i, j]·table[ids[i, j]]`.

    Args:
        weights: `[B, N, T, S]`.
        table: `[R, H]` for all heads or `[N, R, H]`.
        ids: int `[T, S]`.

    Returns:
        `[B, N, T, H]`.
    """
    return matmul_by_position(weights, _gather_rows(table, ids))


def _gather_rows(table, ids):
    """Returns the table row of each pair, `[T, S, H]` or `[N, T, S, H]`."""
    if keras.backend.backend() == "tensorflow":
        from t2t_relpos.attention.tensorflow import lookup

        return lookup.gather_rows(table, ids)
    # The gradient sums over all pairs with the same id.
    rows = ops.take(ops.cast(table, accumulation_dtype(table.dtype)), ids, axis=-2)
    return ops.cast(rows, table.dtype)


def pair_index(ids, num_ids, num_heads):
    """Returns the index of each pair's entry in a flattened `[B, N, T, R + 1]` tensor.

    Args:
        ids: int `[B, T, S]`. Ids outside `[0, R)` mean "no edge" and get entry R.
        num_ids: R.
        num_heads: N.

    Returns:
        int `[B, N, T, S]`. Where products with one-hot ids replace the gather (within `portable`,
        and for empty tensors), the ids themselves.

    Raises:
        ValueError: on JAX, if an index would not fit into int32.
    """
    ids = ops.cast(ids, "int32")
    # Converters do not support the gather. JAX and PyTorch do not support it for empty tensors.
    if is_portable() or 0 in ids.shape:
        return ids
    is_edge = ops.logical_and(ids >= 0, ids < num_ids)
    ids = ops.where(is_edge, ids, num_ids)
    batch, length_q, _ = ops.shape(ids)
    dtype = _index_dtype((batch, num_heads, length_q), num_ids)
    rows = ops.arange(batch * num_heads * length_q, dtype=dtype)
    rows = ops.reshape(rows, (batch, num_heads, length_q, 1))
    return rows * (num_ids + 1) + ops.cast(ops.expand_dims(ids, 1), dtype)


def _index_dtype(sizes, num_ids):
    """Returns the dtype for indices of a tensor `[*sizes, R + 1]`: int32, or int64 if needed."""
    is_known = all(isinstance(size, int) for size in sizes)
    entries = math.prod(sizes) * (num_ids + 1) if is_known else None
    if entries is not None and entries < 2**31:
        return "int32"
    if keras.backend.backend() != "jax":
        return "int64"
    if entries is None:  # symbolic lengths
        return "int32"
    raise ValueError(
        f"Expected at most {2**31 - 1} products of queries and table rows, because JAX has no "
        f"int64 indices by default. Received: B·N·T = {entries // (num_ids + 1)} queries of all "
        f"heads and {num_ids} rows. Use smaller batches or a smaller `max_relative_position`."
    )


def scores_by_id(query, table, index):
    """Returns `query[b, n, i]·table[id of (i, j)]`, 0 without an edge.

    The queries are multiplied with the table once, `[B, N, T, R]`, and each pair gathers one
    entry. No `[T, S, H]` tensor is built.

    Args:
        query: `[B, N, T, H]`.
        table: `[R, H]` for all heads or `[N, R, H]`.
        index: from `pair_index`.

    Returns:
        `[B, N, T, S]`.
    """
    by_id = matmul_table(query, table, transpose_table=True)
    if len(index.shape) < 4:  # the ids
        return expand_by_one_hot(by_id, index)
    by_id = ops.concatenate([by_id, ops.zeros_like(by_id[..., :1])], axis=-1)
    # The gradient of a gather along an inner axis is dense.
    return ops.take(ops.reshape(by_id, (1, -1)), index, axis=1)[0]


def values_by_id(weights, table, index):
    """Returns `sum over j of weights[b, n, i, j]·table[id of (i, j)]`.

    Args:
        weights: `[B, N, T, S]`.
        table: `[R, H]` for all heads or `[N, R, H]`.
        index: from `pair_index`.

    Returns:
        `[B, N, T, H]`.
    """
    num_ids = table.shape[-2]
    if len(index.shape) < 4:  # the ids
        return matmul_table(sum_by_one_hot(weights, index, num_ids), table)
    batch, heads, length_q, _ = ops.shape(weights)
    num_rows = batch * heads * length_q
    if ops.is_tensor(num_rows):  # not an int, nor a symbolic length of JAX
        num_rows = ops.cast(num_rows, index.dtype)
    sums = ops.segment_sum(
        ops.reshape(weights, (-1,)),
        ops.reshape(index, (-1,)),
        num_segments=num_rows * (num_ids + 1),
    )
    by_id = ops.reshape(sums, (batch, heads, length_q, num_ids + 1))[..., :num_ids]
    return matmul_table(by_id, table)


def expand_by_one_hot(by_id, ids):
    """Returns `out[b, n, i, j] = by_id[b, n, i, ids[i, j]]` without a gather, for converters.

    Args:
        by_id: `[B, N, T, R]`.
        ids: int `[T, S]` or `[B, T, S]`. Ids outside `[0, R)` give 0.

    Returns:
        `[B, N, T, S]`.
    """
    one_hot = _one_hot(ids, by_id.shape[-1], by_id.dtype)
    by_position = ops.matmul(ops.swapaxes(by_id, 1, 2), ops.swapaxes(one_hot, -1, -2))
    return ops.swapaxes(by_position, 1, 2)


def sum_by_one_hot(weights, ids, num_ids):
    """Returns `out[b, n, i, r]`, the sum of `weights[b, n, i, j]` over the keys j with id r.

    The transpose of `expand_by_one_hot`.

    Args:
        weights: `[B, N, T, S]`.
        ids: int `[T, S]` or `[B, T, S]`.
        num_ids: R.

    Returns:
        `[B, N, T, R]`.
    """
    by_position = ops.matmul(ops.swapaxes(weights, 1, 2), _one_hot(ids, num_ids, weights.dtype))
    return ops.swapaxes(by_position, 1, 2)


def _one_hot(ids, num_ids, dtype):
    """Returns `ops.one_hot`, computed by a comparison, which every converter supports."""
    return ops.cast(ops.equal(ops.expand_dims(ids, -1), arange(num_ids)), dtype)
