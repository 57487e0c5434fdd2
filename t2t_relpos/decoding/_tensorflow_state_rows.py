"""Reorders rows with one TensorFlow op each. keras.ops also handles negative indices."""

import tensorflow as tf


def gather_rows(x, index):
    """`x[index]`."""
    return tf.gather(x, index)


def take_beams(x, index):
    """`x[b, index[b, i]]`."""
    return tf.gather(x, index, batch_dims=1)
