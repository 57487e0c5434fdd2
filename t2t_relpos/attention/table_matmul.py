"""Matrix products of `[B, N, T, X]` with matrices that all batch entries share."""

import keras
from keras import ops


def matmul_table(x, table, *, transpose_table=False):
    """Returns `[B, N, T, X]` times a table `[X, Y]` or `[N, X, Y]`: `[B, N, T, Y]`.

    A shared table is multiplied in one large product. With one head, tf.matmul of `[B, 1, T, X]`
    and `[X, Y]` corrupts memory in TensorFlow 2.21 with oneDNN (tensorflow/tensorflow#117700).

    Args:
        x: `[B, N, T, X]`.
        table: `[X, Y]` or one per head, `[N, X, Y]`.
        transpose_table: whether the table is `[Y, X]` or `[N, Y, X]`.
    """
    if transpose_table:
        table = ops.swapaxes(table, -1, -2)
    if len(table.shape) == 3 and table.shape[0] == 1:
        table = table[0]
    if len(table.shape) == 3 or keras.backend.backend() != "tensorflow":
        return ops.matmul(x, table)
    batch, heads, length, width = ops.shape(x)
    product = ops.matmul(ops.reshape(x, (batch * heads * length, width)), table)
    return ops.reshape(product, (batch, heads, length, ops.shape(table)[-1]))


def matmul_by_position(x, matrices):
    """Returns `[B, N, T, X]` times `[T, X, Y]` or `[N, T, X, Y]`: `[B, N, T, Y]`."""
    if len(matrices.shape) == 4:
        product = ops.matmul(ops.transpose(x, (1, 2, 0, 3)), matrices)
        return ops.transpose(product, (2, 0, 1, 3))
    batch, heads, length, width = ops.shape(x)
    x = ops.reshape(ops.transpose(x, (2, 0, 1, 3)), (length, batch * heads, width))
    # A size of -1 can't be inferred if a replica has an empty batch.
    shape = (length, batch, heads, ops.shape(matrices)[-1])
    return ops.transpose(ops.reshape(ops.matmul(x, matrices), shape), (1, 2, 0, 3))
