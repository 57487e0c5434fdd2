"""Scores and weights by relative id, for attention algorithms that get no tables.

An algorithm with `reads_tables=False` in `dispatch.TABLE` gets and returns:

    scores by id   z[t, r]   product of query t and row r of the key table
    weights by id  w[t, r]   sum of the weights of query t for the keys with id r, after dropout
    log-sum-exp    L[t]      of the scores of query t, before dropout

The products with both tables are computed here, and differentiated by the backend. The gradient of
such an algorithm therefore does not depend on tables: whether there are any, whether each head has
its own, and which queries the key table is multiplied with (`relative_query`).

`differentiate` is also used by algorithms that read tables.
"""

import dataclasses
from typing import Any, NamedTuple

from t2t_relpos.backend import (
    accumulation_dtype,
    custom_gradient,
    matmul,
    matmul_matrix,
    ops,
)


class Results(NamedTuple):
    """Results of an attention algorithm. A fully masked query has zeros, and the lowest log-sum.

    Args:
        outputs: `[B, N, T, Hv]`, without the relative values if there are `weights_by_id`.
        weights_by_id: w `[B, N, T, R]`, in the accumulation dtype. None if not needed.
        log_sums: L `[B, N, T, 1]`, in the accumulation dtype, `MASKED_SCORE` for a fully masked
            query. None if not needed.
        total: sum of the weights after dropout `[B, N, T, 1]`, in the accumulation dtype. None if
            not needed.
        weights: the weights before dropout `[B, N, T, S]`, or None.
    """

    outputs: Any
    weights_by_id: Any = None
    log_sums: Any = None
    total: Any = None
    weights: Any = None


def attend_by_scores(algorithm, call):
    """Returns the `Results` of a call with tables, by an algorithm that knows none.

    Args:
        algorithm: function of an `AttentionCall` with `scores_by_id`, `needs_weights_by_id` and
            `needs_log_sums` in place of tables. It returns `Results`.
        call: an `AttentionCall` with tables.
    """
    if call.key_table is None and call.value_table is None:
        return algorithm(call)
    call, scores = extend_tables(call), None
    if call.key_table is not None:
        scores = scores_by_id(call.table_query, call.key_table)
    results = algorithm(
        dataclasses.replace(
            call,
            scores_by_id=scores,
            needs_weights_by_id=call.value_table is not None,
            relative_query=None,
            key_table=None,
            value_table=None,
        )
    )
    if call.value_table is None:
        return results
    relative = relative_values(results.weights_by_id, call.value_table, call.query.dtype)
    outputs = results.outputs + ops.cast(relative, results.outputs.dtype)
    return results._replace(outputs=outputs, weights_by_id=None)


def extend_tables(call, left=1):
    """Returns an equivalent call whose distances are at least 1, or right = 0 if causal.

    `left` is the smallest distance to the left.
    """
    if call.distances is None or call.ids_rank is not None:
        return call
    return call.with_distances(call.distances.extended(left, 0 if call.causal else 1))


def differentiate(call, forward, backward, plain):
    """Returns the `Results` of an algorithm with a custom gradient.

    All tensors are arguments of the functions, in the call: a gradient with respect to a captured
    tensor would be lost.

    Args:
        call: an `AttentionCall`.
        forward: function of the call that returns (`Results`, saved results).
        backward: function of the call, the saved results and the gradients of the `Results` that
            returns a dict of gradients by the name of the tensor.
        plain: function of the call that returns the `Results`, as in `backend.custom_gradient`.
    """
    others = "weights_by_id", "log_sums", "total"
    names = ["outputs", *(name for name in others if getattr(call, f"needs_{name}"))]

    def run(tensors):
        results, saved = forward(call.with_tensors(tensors))
        return tuple(getattr(results, name) for name in names), saved

    def gradient(tensors, saved, d_outputs):
        return backward(call.with_tensors(tensors), saved, Results(**dict(zip(names, d_outputs))))

    def run_plain(tensors):
        results = plain(call.with_tensors(tensors))
        return tuple(getattr(results, name) for name in names)

    return Results(**dict(zip(names, custom_gradient(run, gradient, run_plain, call.tensors()))))


def scores_by_id(query, table):
    """Returns `query·tableᵀ` `[B, N, T, R]`, in the accumulation dtype.

    Args:
        query: `[B, N, T, H]`.
        table: `[R, H]` for all heads or `[N, R, H]`.
    """
    products = matmul_table(query, table, transpose_table=True)
    return ops.cast(products, accumulation_dtype(query.dtype))


def relative_values(weights_by_id, table, dtype):
    """Returns `weights·table` `[B, N, T, H]`.

    Args:
        weights_by_id: `[B, N, T, R]`.
        table: `[R, H]` for all heads or `[N, R, H]`.
        dtype: dtype of the result.
    """
    return matmul_table(ops.cast(weights_by_id, dtype), table)


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
