"""Products of a batch with what is the same for all of it: tables, and rows looked up in them."""

from keras import ops


def times_table(x, table, transpose=False):
    """`[B, N, T, X]` times a table `[X, Y]`, or one for each head `[N, X, Y]` -> `[B, N, T, Y]`.

    What all heads share is one large product. It has to be: where there is one head, TensorFlow 2.21 with oneDNN corrupts memory in
    `tf.matmul` of `[B, 1, T, X]` and `[X, Y]` (https://github.com/tensorflow/tensorflow/issues/117700).

    Args:
        transpose: whether the table is `[Y, X]` or `[N, Y, X]`.
    """
    if transpose:
        table = ops.swapaxes(table, -1, -2)
    if len(table.shape) == 3 and table.shape[0] == 1:
        table = table[0]
    if len(table.shape) == 3:
        return ops.matmul(x, table)
    batch, heads, length, width = ops.shape(x)
    product = ops.matmul(ops.reshape(x, (batch * heads * length, width)), table)
    return ops.reshape(product, (batch, heads, length, ops.shape(table)[-1]))


def times_rows(x, rows):
    """`[B, N, T, X]` times `[T, X, Y]` or `[N, T, X, Y]` -> `[B, N, T, Y]`: every position has a matrix of its own."""
    if len(rows.shape) == 4:
        product = ops.matmul(ops.transpose(x, (1, 2, 0, 3)), rows)
        return ops.transpose(product, (2, 0, 1, 3))
    batch, heads, length, width = ops.shape(x)
    x = ops.reshape(ops.transpose(x, (2, 0, 1, 3)), (length, batch * heads, width))
    # Not -1 for the last: a replica may hold no rows at all.
    shape = (length, batch, heads, ops.shape(rows)[-1])
    product = ops.reshape(ops.matmul(x, rows), shape)
    return ops.transpose(product, (1, 2, 0, 3))
