"""Products of queries with keys that several heads of queries share (grouped queries).

Head n of the queries has the keys of head `n // (N / G)`. Keys are not repeated: the queries of the
heads that share them become rows of the same product.

Shapes: N heads of queries; G heads of keys, G divides N; C queries.
"""

from t2t_relpos.backend import matmul, ops


def matmul_keys(x, y):
    """Returns `x @ y`: `[B, N, C, X]` times `[B, G, X, Y]`, `[B, N, C, Y]`."""
    heads, num_groups = x.shape[1], y.shape[1]
    if heads == num_groups:
        return matmul(x, y)
    batch, _, rows, _ = ops.shape(x)
    product = matmul(_rows_of_groups(x, num_groups), y)
    return ops.reshape(product, (batch, heads, rows, ops.shape(y)[-1]))


def sum_over_queries(x, y, num_groups):
    """Returns `xᵀ @ y` of `[B, N, C, S]` and `[B, N, C, H]`, summed over shared heads.

    Args:
        x: `[B, N, C, S]`.
        y: `[B, N, C, H]`.
        num_groups: G.

    Returns:
        `[B, G, S, H]`.
    """
    if x.shape[1] != num_groups:
        x, y = (_rows_of_groups(each, num_groups) for each in (x, y))
    return matmul(ops.swapaxes(x, -1, -2), y)


def _rows_of_groups(x, num_groups):
    """Returns `[B, N, C, X]` as `[B, G, N / G * C, X]`."""
    batch, heads, rows, width = ops.shape(x)
    return ops.reshape(x, (batch, num_groups, heads // num_groups * rows, width))
