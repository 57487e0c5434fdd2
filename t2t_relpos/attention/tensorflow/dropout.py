"""Dropout on TensorFlow with 16 random bits per entry, half as many as tf.nn.dropout draws."""

import tensorflow as tf

_STEPS = 2**16


def as_seed(drawn, block=None):
    """Converts a seed from keras.random.SeedGenerator to int32 `[2]`, as TensorFlow expects.

    Args:
        drawn: the seed.
        block: number of a block, an int or a scalar tensor, or None. Each number gives a different
            seed.
    """
    seed = tf.bitcast(tf.cast(drawn, tf.uint32), tf.int32)
    return seed if block is None else tf.random.experimental.stateless_fold_in(seed, block)


def factors(shape, rate, seed, dtype):
    """Returns dropout factors: 0 with probability `rate`, otherwise 1 / (1 - rate).

    Args:
        shape: int32 tensor `[rank]`, or a list of ints and scalar tensors.
        rate: in `[0, 1)`, rounded to 1 / 65,536.
        seed: int32 `[2]`.
        dtype: dtype of the factors.
    """
    threshold = min(round(rate * _STEPS), _STEPS - 1)
    keep = tf.cast(_random_int16(shape, seed) >= threshold - _STEPS // 2, dtype)
    return keep * (_STEPS / (_STEPS - threshold))


def _random_int16(shape, seed):
    """Returns a tensor of random int16. One 64-bit draw gives four of them."""
    size = tf.reduce_prod(shape, keepdims=True)
    draws = tf.random.stateless_uniform((size + 3) // 4, seed, None, None, tf.int64)
    # tf.slice copies nothing if the size is divisible by four.
    return tf.reshape(tf.slice(tf.reshape(tf.bitcast(draws, tf.int16), [-1]), [0], size), shape)
