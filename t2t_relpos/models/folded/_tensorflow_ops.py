"""Single TensorFlow ops for functions that keras.ops composes from several ops."""

import tensorflow as tf


def unknown_zero():
    """Returns a scalar 0 whose value is unknown while a graph is built."""
    return tf.raw_ops.PlaceholderWithDefault(input=0, shape=[])


def take_rows(table, ids):
    """Returns `table[ids]`."""
    return tf.gather(table, ids)


def matmul_transposed(x, y):
    """Returns `x·yᵀ` over the last two axes."""
    return tf.matmul(x, y, transpose_b=True)
