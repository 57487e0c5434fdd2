"""Compiled functions on TensorFlow."""

import tensorflow as tf


def compile_function(model, function):
    """Returns `function` as a graph. Sizes of the batch may change without a new graph."""
    return tf.function(function, reduce_retracing=True, autograph=False)
