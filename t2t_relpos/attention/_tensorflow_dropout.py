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
    threshold = min(round(rate * _STEPS), _STEPS - 1)
    kept = tf.cast(_bits(tf.shape(x), x.shape, seed) >= threshold - _STEPS // 2, x.dtype)
    return x * (kept * (_STEPS / (_STEPS - threshold)))


def _bits(shape, static_shape, seed):
    """Random int16 of a shape."""
    if static_shape.rank and (static_shape[-1] or 1) % 4 == 0:
        draws = tf.concat([shape[:-1], [static_shape[-1] // 4]], 0)
        return tf.reshape(_draw(draws, seed), shape)
    size = tf.reduce_prod(shape)
    return tf.reshape(tf.reshape(_draw([(size + 3) // 4], seed), [-1])[:size], shape)


def _draw(shape, seed):
    return tf.bitcast(tf.random.stateless_uniform(shape, seed, None, None, tf.int64), tf.int16)
