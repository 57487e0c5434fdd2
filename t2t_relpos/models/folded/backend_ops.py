"""Matrix products and look-ups with few operations on every backend."""

import keras
from keras import ops


def take_rows(table, ids):
    """Returns `table[ids]` for ids that are not negative."""
    if keras.backend.backend() == "tensorflow":
        from t2t_relpos.models.folded import _tensorflow_ops

        return _tensorflow_ops.take_rows(table, ids)
    return ops.take(table, ids, axis=0)


def dense(x, kernel, bias=None):
    """Returns `x·kernel + bias`, computing the product in the dtype of the kernel."""
    dtype = keras.backend.standardize_dtype(kernel.dtype)
    if dtype == keras.backend.standardize_dtype(x.dtype):
        product = ops.matmul(x, kernel)
    else:
        product = ops.cast(ops.matmul(ops.cast(x, dtype), kernel), x.dtype)
    return product if bias is None else ops.add(product, bias)


def matmul_transposed(x, y):
    """Returns `x·yᵀ` over the last two axes."""
    if keras.backend.backend() == "tensorflow":
        from t2t_relpos.models.folded import _tensorflow_ops

        return _tensorflow_ops.matmul_transposed(x, y)
    return ops.matmul(x, ops.swapaxes(y, -1, -2))


def matmul_table(x, table, shape, *, transpose_table=False):
    """Returns `[B, N, T, X]` times a table `[X, Y]` or `[N, X, Y]`.

    Args:
        x: `[B, N, T, X]`.
        table: `[X, Y]`, or `[N, X, Y]` for separate tables of the heads.
        shape: shape of the result, `(B, N, T, Y)`. Reading it from tensors would take a few more
            operations in a graph.
        transpose_table: whether the table is `[Y, X]` or `[N, Y, X]`.
    """
    # With one head, a product of rank 4 is wrong: see `t2t_relpos.attention.gather`.
    if len(table.shape) == 3 and table.shape[0] == 1:
        table = table[0]
    multiply = matmul_transposed if transpose_table else ops.matmul
    if len(table.shape) == 3:
        return multiply(x, table)
    width = table.shape[-1] if transpose_table else ops.shape(table)[-2]
    return ops.reshape(multiply(ops.reshape(x, (-1, width)), table), shape)
