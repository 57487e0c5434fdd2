"""Moving rows in TensorFlow's own operations: one each, where keras.ops takes care of negative indices and broadcasting."""

import tensorflow as tf


def gather_rows(x, index):
    """`x[index]`."""
    return tf.gather(x, index)


def take_beams(x, index):
    """`x[b, index[b, i]]`."""
    return tf.gather(x, index, batch_dims=1)
