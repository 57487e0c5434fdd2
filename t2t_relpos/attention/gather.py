"""Full-matrix attention in keras.ops, differentiated by the backend, and gathered relative terms.

`attend_with_terms` computes attention; the implementations differ in the functions for the relative
terms. The functions here gather: for short sequences, and for arbitrary relative ids. Those of
`skew` pad, reshape and slice.
"""

import dataclasses
import math

from t2t_relpos.attention.masks import masked_softmax
from t2t_relpos.backend import (
    LARGE_INDEX_DTYPE,
    arange,
    is_portable,
    matmul,
    matmul_matrix,
    ops,
    scaled_dot_product_attention,
    segment_sum,
    take_table_rows,
)


def attend_without_tables(call):
    """Returns (outputs, weights) of attention without relative terms."""
    return attend_with_terms(call, None, None)


def attend_by_backend(call):
    """Returns (outputs, None) of attention without relative terms, by the backend's function."""
    is_causal = needs_no_causal_mask(call)
    masked = dataclasses.replace(call, causal=call.causal and not is_causal)
    tensors = {name: getattr(call, name) for name in ("query", "key", "value")}
    return scaled_dot_product_attention(
        tensors,
        masked.combined_mask(),
        is_causal=is_causal,
        plain=lambda tensors: attend_without_tables(dataclasses.replace(call, **tensors))[0],
    ), None


def needs_no_causal_mask(call):
    """Returns whether causality is the only mask, and query i is at the position of key i."""
    has_masks = call.mask is not None or call.key_mask is not None
    return bool(call.causal) and call.has_equal_positions and not has_masks


def attend_by_rows(call):
    """Returns (outputs, weights). Gathers a table row for each pair of positions."""
    ids = call.pair_ids()
    return attend_with_terms(
        call,
        lambda query, table: scores_by_rows(query, table, ids),
        lambda weights, table: values_by_rows(weights, table, ids),
    )


def attend_by_id(call):
    """Returns (outputs, weights). Gathers one entry of `q·tableᵀ` for each pair of positions."""
    ids = ops.convert_to_tensor(call.pair_ids())
    if len(ids.shape) == 2 and not is_portable():  # There, `pair_index` needs no batch axis.
        ids = ops.broadcast_to(ids, (ops.shape(call.query)[0], *ops.shape(ids)))
    table = call.value_table if call.key_table is None else call.key_table
    index = pair_index(ids, table.shape[-2], call.query.shape[1])
    return attend_with_terms(
        call,
        lambda query, table: scores_by_id(query, table, index),
        lambda weights, table: values_by_id(weights, table, index),
    )


def attend_with_terms(call, relative_scores, relative_values):
    """Returns (outputs, weights) of attention with the full score matrix.

    Args:
        call: an `AttentionCall`.
        relative_scores: function of queries `[B, N, T, H]` and the key table that returns the
            relative scores `[B, N, T, S]`. Unused without a key table.
        relative_values: function of weights `[B, N, T, S]` and the value table that returns the
            relative values `[B, N, T, Hv]`. Unused without a value table.
    """
    scores = matmul(call.query, ops.swapaxes(call.key, -1, -2))
    if call.key_table is not None:
        scores = scores + relative_scores(call.query, call.key_table)
    if call.bias is not None:
        scores = scores + call.bias
    weights = masked_softmax(scores, call.combined_mask())
    dropped = weights if call.dropout is None else call.dropout(weights)
    outputs = matmul(dropped, call.value)
    if call.value_table is not None:
        outputs = outputs + relative_values(dropped, call.value_table)
    return outputs, weights


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
    return matmul_by_position(query, ops.swapaxes(take_table_rows(table, ids), -1, -2))


def values_by_rows(weights, table, ids):
    """Returns `out[b, n, i] = sum over j of weights[b, n, i, j]·table[ids[i, j]]`.

    Args:
        weights: `[B, N, T, S]`.
        table: `[R, H]` for all heads or `[N, R, H]`.
        ids: int `[T, S]`.

    Returns:
        `[B, N, T, H]`.
    """
    return matmul_by_position(weights, take_table_rows(table, ids))


def pair_index(ids, num_ids, num_heads):
    """Returns the index of each pair's entry in a flattened `[B, N, T, R + 1]` tensor.

    Where products with one-hot ids replace the gather (within `portable`, and for empty tensors),
    it returns the ids.

    Args:
        ids: int `[B, T, S]`. Ids outside `[0, R)` mean "no edge" and get entry R.
        num_ids: R.
        num_heads: N.

    Returns:
        int `[B, N, T, S]`, or `ids`.

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
    if entries is None or LARGE_INDEX_DTYPE != "int32":
        return LARGE_INDEX_DTYPE
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
    sums = segment_sum(
        ops.reshape(weights, (-1,)), ops.reshape(index, (-1,)), num_rows * (num_ids + 1)
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
    by_position = matmul(ops.swapaxes(by_id, 1, 2), ops.swapaxes(one_hot, -1, -2))
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
    by_position = matmul(ops.swapaxes(weights, 1, 2), _one_hot(ids, num_ids, weights.dtype))
    return ops.swapaxes(by_position, 1, 2)


def _one_hot(ids, num_ids, dtype):
    """Returns `ops.one_hot`, computed by a comparison, which every converter supports."""
    return ops.cast(ops.equal(ops.expand_dims(ids, -1), arange(num_ids)), dtype)


def matmul_table(x, table, *, transpose_table=False):
    """Returns `[B, N, T, X]` times a table `[X, Y]` or `[N, X, Y]`: `[B, N, T, Y]`.

    Args:
        x: `[B, N, T, X]`.
        table: `[X, Y]` or one per head, `[N, X, Y]`.
        transpose_table: whether the table is `[Y, X]` or `[N, Y, X]`.
    """
    if transpose_table:
        table = ops.swapaxes(table, -1, -2)
    if len(table.shape) == 3 and table.shape[0] == 1:
        table = table[0]
    return matmul(x, table) if len(table.shape) == 3 else matmul_matrix(x, table)


def matmul_by_position(x, matrices):
    """Returns `[B, N, T, X]` times `[T, X, Y]` or `[N, T, X, Y]`: `[B, N, T, Y]`."""
    if len(matrices.shape) == 4:
        product = matmul(ops.transpose(x, (1, 2, 0, 3)), matrices)
        return ops.transpose(product, (2, 0, 1, 3))
    batch, heads, length, width = ops.shape(x)
    x = ops.reshape(ops.transpose(x, (2, 0, 1, 3)), (length, batch * heads, width))
    # A size of -1 can't be inferred if a replica has an empty batch.
    shape = (length, batch, heads, ops.shape(matrices)[-1])
    return ops.transpose(ops.reshape(matmul(x, matrices), shape), (1, 2, 0, 3))
