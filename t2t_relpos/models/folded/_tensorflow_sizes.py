"""Sizes that a TensorFlow graph does not know."""

import tensorflow as tf


def unknown_zero():
    """Returns a scalar 0 whose value is unknown while a graph is built."""
    return tf.raw_ops.PlaceholderWithDefault(input=0, shape=[])
