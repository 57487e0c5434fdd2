"""Attention with relative positions by its definition, for any two clipping distances."""

from keras import ops


def attention_of_pairs(
    query,
    key,
    value,
    key_table=None,
    value_table=None,
    *,
    max_relative_position,
    query_positions,
    key_positions,
    mask=None,
):
    """Returns (outputs, weights), from the table rows of all pairs of a query and a key.

    Shaw et al. 2018, equations 1 to 4. `max_relative_position` is (left, right), and positions are
    int32 `[T]` and `[S]`. The other arguments are as in `attend`. Queries are not scaled.
    """
    left, right = max_relative_position
    rows = ops.clip(key_positions[None, :] - query_positions[:, None], -left, right) + left
    # `[T, S, H]` or `[N, T, S, H]`.
    key_vectors, value_vectors = (
        0.0 if table is None else ops.take(table, rows, axis=-2)
        for table in (key_table, value_table)
    )
    query = ops.expand_dims(query, 3)
    key, value = ops.expand_dims(key, 2), ops.expand_dims(value, 2)
    scores = ops.sum(query * (key + key_vectors), axis=-1)
    scores = scores if mask is None else ops.where(mask, scores, -1e9)
    exponentials = ops.exp(scores - ops.stop_gradient(ops.max(scores, axis=-1, keepdims=True)))
    weights = exponentials / ops.sum(exponentials, axis=-1, keepdims=True)
    weights = weights if mask is None else ops.where(mask, weights, 0.0)
    return ops.sum(ops.expand_dims(weights, -1) * (value + value_vectors), axis=3), weights
