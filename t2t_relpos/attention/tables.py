"""The products with tables, and the contract of attention algorithms, which know no tables.

An algorithm gets scores by relative id and returns weights by relative id:

    z[t, r]   score of query t for the keys with relative id r: row t of `query·key_tableᵀ`
    w[t, r]   sum of the weights of query t for the keys with id r, after dropout
    L[t]      log-sum-exp of the scores of query t, before dropout

The products with both tables are computed here and differentiated by the backend. Gradients of
algorithms therefore have no case for tables per head, an absent table, or queries of their own.
"""

import dataclasses
from typing import Any, NamedTuple

from t2t_relpos.backend import accumulation_dtype, matmul, matmul_matrix, ops


class Results(NamedTuple):
    """Results of an attention algorithm. A fully masked query has zeros, and the lowest log-sum.

    Args:
        outputs: `[B, N, T, Hv]`, without the relative values if there are `weights_by_id`.
        weights_by_id: w `[B, N, T, R]`, in the accumulation dtype. None if not needed.
        log_sums: L `[B, N, T, 1]`, in the accumulation dtype, `MASKED_SCORE` for a fully masked
            query. None if not needed.
        weights: the weights before dropout `[B, N, T, S]`, or None.
    """

    outputs: Any
    weights_by_id: Any = None
    log_sums: Any = None
    weights: Any = None


def attend_by_scores(algorithm, call):
    """Returns the `Results` of a call with tables, by an algorithm that knows none.

    Args:
        algorithm: function of an `AttentionCall` with `scores_by_id`, `needs_weights_by_id` and
            `needs_log_sums` in place of tables. It returns `Results`.
        call: an `AttentionCall` with tables.
    """
    scores, dtype = None, call.query.dtype
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
    relative = relative_values(results.weights_by_id, call.value_table, dtype)
    return results._replace(outputs=results.outputs + relative, weights_by_id=None)


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
