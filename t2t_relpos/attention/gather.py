"""Full-matrix attention in keras.ops, differentiated by the backend, and gathered relative terms.

`attend_full_matrix` computes attention; the implementations differ in how they expand scores by id
to all pairs, and sum weights by id. The functions here gather: for short sequences, and for
arbitrary relative ids. Those of `skew` pad, reshape and slice.
"""

import dataclasses
import math

from t2t_relpos.attention.heads import matmul_keys
from t2t_relpos.attention.tables import Results
from t2t_relpos.backend import (
    LARGE_INDEX_DTYPE,
    MASKED_SCORE,
    accumulation_dtype,
    arange,
    fill_masked,
    is_portable,
    matmul,
    ops,
    scaled_dot_product_attention,
    segment_sum,
    softmax,
    take_table_rows,
)


def attend_without_tables(call):
    """Returns the `Results` of attention without relative terms."""
    return attend_full_matrix(call)


def attend_by_backend(call):
    """Returns the outputs of attention without relative terms, by the backend's function."""
    is_causal = needs_no_causal_mask(call)
    masked = dataclasses.replace(call, causal=call.causal and not is_causal)
    tensors = {name: getattr(call, name) for name in ("query", "key", "value")}
    outputs = scaled_dot_product_attention(
        tensors,
        masked.combined_mask(),
        is_causal=is_causal,
        plain=lambda tensors: attend_without_tables(dataclasses.replace(call, **tensors)).outputs,
    )
    return Results(outputs)


def needs_no_causal_mask(call):
    """Returns whether causality is the only mask, and query i is at the position of key i."""
    has_masks = call.mask is not None or call.key_mask is not None
    return bool(call.causal) and call.has_equal_positions and not has_masks


def attend_by_rows(call):
    """Returns the `Results`. Gathers a table row for each pair of positions."""
    ids, scores = call.pair_ids(), products_with_keys(call.query, call.key)
    if call.key_table is not None:
        relative = scores_by_rows(call.table_query, call.key_table, ids)
        scores = scores + ops.cast(relative, scores.dtype)
    results, dropped = _attend_by_scores(call, scores)
    if call.value_table is None:
        return results
    relative = values_by_rows(dropped, call.value_table, ids)
    return results._replace(outputs=results.outputs + relative)


def attend_by_index(call):
    """Returns the `Results`. Gathers the entry of each pair of positions."""
    ids = ops.convert_to_tensor(call.pair_ids())
    if len(ids.shape) == 2 and not is_portable():  # There, `pair_index` needs no batch axis.
        ids = ops.broadcast_to(ids, (ops.shape(call.query)[0], *ops.shape(ids)))
    num_ids = call.distances.num_ids
    index = pair_index(ids, num_ids, call.query.shape[1])
    return attend_full_matrix(
        call,
        lambda by_id: expand_by_index(by_id, index),
        lambda weights: sum_by_index(weights, index, num_ids),
    )


def attend_full_matrix(call, expand=None, sum_by_id=None):
    """Returns the `Results` of attention with the full score matrix.

    Args:
        call: an `AttentionCall`.
        expand: function of scores by id `[B, N, T, R]` that returns those of all pairs
            `[B, N, T, S]`. Unused without scores by id. Default: None.
        sum_by_id: function of weights `[B, N, T, S]` that returns their sums by id
            `[B, N, T, R]`. Unused if weights by id are not needed. Default: None.
    """
    scores = products_with_keys(call.query, call.key)
    if call.scores_by_id is not None:
        scores = scores + expand(call.scores_by_id)
    results, dropped = _attend_by_scores(call, scores)
    if not call.needs_weights_by_id:
        return results
    return results._replace(weights_by_id=sum_by_id(ops.cast(dropped, scores.dtype)))


def products_with_keys(query, key):
    """Returns `query·keyᵀ` `[.., T, S]`, in the accumulation dtype."""
    products = matmul_keys(query, ops.swapaxes(key, -1, -2))
    return ops.cast(products, accumulation_dtype(query.dtype))


def _attend_by_scores(call, scores):
    """Returns (the `Results` without relative values, the weights after dropout)."""
    if call.bias is not None:
        scores = scores + ops.cast(call.bias, scores.dtype)
    mask, log_sums = call.combined_mask(), None
    if call.needs_log_sums:
        masked = scores if mask is None else fill_masked(scores, mask, MASKED_SCORE)
        log_sums = ops.logsumexp(masked, axis=-1, keepdims=True)
    weights = ops.cast(softmax(scores, mask), call.query.dtype)
    dropped = weights if call.dropout is None else call.dropout(weights)
    return Results(matmul_keys(dropped, call.value), log_sums=log_sums, weights=weights), dropped


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


def expand_by_index(by_id, index):
    """Returns `by_id[b, n, i, id of (i, j)]`, 0 without an edge, without a `[T, S, H]` tensor.

    Args:
        by_id: `[B, N, T, R]`.
        index: from `pair_index`.

    Returns:
        `[B, N, T, S]`.
    """
    if len(index.shape) < 4:  # the ids
        return expand_by_one_hot(by_id, index)
    by_id = ops.concatenate([by_id, ops.zeros_like(by_id[..., :1])], axis=-1)
    # The gradient of a gather along an inner axis is dense.
    return ops.take(ops.reshape(by_id, (1, -1)), index, axis=1)[0]


def sum_by_index(weights, index, num_ids):
    """Returns `out[b, n, i, r]`, the sum of `weights[b, n, i, j]` over the keys j with id r.

    The transpose of `expand_by_index`.

    Args:
        weights: `[B, N, T, S]`.
        index: from `pair_index`.
        num_ids: R.

    Returns:
        `[B, N, T, R]`.
    """
    if len(index.shape) < 4:  # the ids
        return sum_by_one_hot(weights, index, num_ids)
    batch, heads, length_q, _ = ops.shape(weights)
    num_rows = batch * heads * length_q
    if ops.is_tensor(num_rows):  # not an int, nor a symbolic length of JAX
        num_rows = ops.cast(num_rows, index.dtype)
    sums = segment_sum(
        ops.reshape(weights, (-1,)), ops.reshape(index, (-1,)), num_rows * (num_ids + 1)
    )
    return ops.reshape(sums, (batch, heads, length_q, num_ids + 1))[..., :num_ids]


def expand_by_one_hot(by_id, ids):
    """Returns `out[b, n, i, j] = by_id[b, n, i, ids[i, j]]` without a gather, for converters.

    Args:
        by_id: `[B, N, T, R]`.
        ids: int `[T, S]` or `[B, T, S]`. Ids outside `[0, R)` give 0.

    Returns:
        `[B, N, T, S]`.
    """
    edges = one_hot(ids, by_id.shape[-1], by_id.dtype)
    by_position = matmul(ops.swapaxes(by_id, 1, 2), ops.swapaxes(edges, -1, -2))
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
    by_position = matmul(ops.swapaxes(weights, 1, 2), one_hot(ids, num_ids, weights.dtype))
    return ops.swapaxes(by_position, 1, 2)


def one_hot(ids, num_ids, dtype):
    """Returns `ops.one_hot`, computed by a comparison, which every converter supports."""
    return ops.cast(ops.equal(ops.expand_dims(ids, -1), arange(num_ids)), dtype)


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
