"""Rows of tables on TensorFlow, with a gradient that is a product."""

import tensorflow as tf


@tf.autograph.experimental.do_not_convert
def rows(table, labels):
    """`[R, H]` and `[T, S]` -> `[T, S, H]`, or `[N, R, H]` -> `[N, T, S, H]`.

    A table has few rows and labels repeat: their gradients are added up by a product with which label is which, several times as fast
    as one by one.
    """

    @tf.custom_gradient
    def run(table):
        def gradient(upstream):
            shape = tf.shape(upstream)
            flat = tf.reshape(upstream, tf.concat([shape[:-3], [shape[-3] * shape[-2], table.shape[-1]]], 0))
            is_of = tf.one_hot(tf.reshape(labels, [-1]), table.shape[-2], dtype=upstream.dtype)
            return tf.matmul(is_of, flat, transpose_a=True)

        return tf.gather(table, labels, axis=-2), gradient

    return run(tf.convert_to_tensor(table))
