"""Products of queries with keys that several heads of queries share (grouped queries).

Head n of the queries has the keys of head `n // (N / G)`. In products, keys are not repeated: the
queries of the heads that share them become rows of the same product.

Shapes: N heads of queries; G heads of keys, G divides N; C queries.
"""

from t2t_relpos.backend import accumulation_dtype, matmul, ops


def matmul_keys(x, y):
    """Returns `x @ y`: `[B, N, C, X]` times `[B, G, X, Y]`, `[B, N, C, Y]`."""
    heads, num_groups = x.shape[1], y.shape[1]
    if heads == num_groups:
        return matmul(x, y)
    batch, _, rows, _ = ops.shape(x)
    product = matmul(_rows_of_groups(x, num_groups), y)
    return ops.reshape(product, (batch, heads, rows, ops.shape(y)[-1]))


def multiply(x, y, dtype):
    """Returns `matmul_keys(x, y)`, multiplied in `dtype` and cast to the accumulation dtype."""
    product = matmul_keys(ops.cast(x, dtype), ops.cast(y, dtype))
    return ops.cast(product, accumulation_dtype(dtype))


def sum_over_queries(x, y, num_groups, dtype):
    """Returns `xᵀ @ y` of `[B, N, C, S]` and `[B, N, C, H]`, summed over shared heads.

    Args:
        x: `[B, N, C, S]`.
        y: `[B, N, C, H]`.
        num_groups: G.
        dtype: dtype of the multiplication.

    Returns:
        `[B, G, S, H]`, in the accumulation dtype.
    """
    if x.shape[1] != num_groups:
        x, y = (_rows_of_groups(each, num_groups) for each in (x, y))
    return multiply(transpose(x), y, dtype)


def transpose(x):
    """Swaps the last two axes."""
    return ops.swapaxes(x, -1, -2)


def repeat_keys(x, num_heads):
    """Returns `[B, G, S, X]` as `[B, N, S, X]`, for kernels that do not support grouped queries."""
    batch, num_groups, length, width = ops.shape(x)
    if num_groups == num_heads:
        return x
    shape = batch, num_groups, num_heads // num_groups, length, width
    return ops.reshape(ops.broadcast_to(x[:, :, None], shape), (batch, num_heads, length, width))


def _rows_of_groups(x, num_groups):
    """Returns `[B, N, C, X]` as `[B, G, N / G * C, X]`."""
    batch, heads, rows, width = ops.shape(x)
    return ops.reshape(x, (batch, num_groups, heads // num_groups * rows, width))
