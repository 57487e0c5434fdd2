"""Dropout on TensorFlow that takes 16 random bits a number, half of what TensorFlow's own takes."""

import tensorflow as tf

_STEPS = 2**16


def as_seed(drawn):
    """What a keras.random.SeedGenerator draws, as TensorFlow takes it: int32 `[2]`."""
    return tf.bitcast(tf.cast(drawn, tf.uint32), tf.int32)


def drop(x, rate, seed):
    """Sets numbers to zero at a rate, rounded to 1 / 65,536, and scales up the others.

    Args:
        x: floats of any shape.
        rate: at least 0 and below 1.
        seed: int32 `[2]`.
    """
    return x * factors(tf.shape(x), rate, seed, x.dtype)


def factors(shape, rate, seed, dtype):
    """What `drop` multiplies numbers by: 0 at a rate, 1 / (1 - rate) elsewhere; the same for the same seed.

    Args:
        shape: of the numbers, an int32 tensor `[rank]`, or ints and scalar tensors.
        rate, seed: as in `drop`.
        dtype: of the numbers.
    """
    threshold = min(round(rate * _STEPS), _STEPS - 1)
    kept = tf.cast(_bits(shape, seed) >= threshold - _STEPS // 2, dtype)
    return kept * (_STEPS / (_STEPS - threshold))


def _bits(shape, seed):
    """Random int16 of a shape, four to a draw."""
    size = tf.reduce_prod(shape, keepdims=True)
    draws = tf.random.stateless_uniform((size + 3) // 4, seed, None, None, tf.int64)
    # Where four divide the size, which they mostly do, the slice is all there is, and nothing is copied.
    return tf.reshape(tf.slice(tf.reshape(tf.bitcast(draws, tf.int16), [-1]), [0], size), shape)
