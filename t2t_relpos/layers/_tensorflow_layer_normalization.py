"""Layer normalization on TensorFlow with a custom gradient: fewer passes over the inputs."""

import tensorflow as tf


def normalize(x, gamma, beta, epsilon):
    """Returns `(x - mean) * rsqrt(variance + epsilon) * gamma + beta`, in float32 at least.

    Args:
        x: `[..., D]`.
        gamma: `[D]`.
        beta: `[D]`.
        epsilon: a float.

    Returns:
        `[..., D]`, of the dtype of `x`.
    """
    dtype = x.dtype
    exact = dtype if dtype == tf.float64 else tf.float32
    arguments = [tf.cast(each, exact) for each in (x, gamma, beta)]
    return tf.cast(_normalize(*arguments, epsilon), dtype)


@tf.autograph.experimental.do_not_convert
def _normalize(x, gamma, beta, epsilon):
    @tf.custom_gradient
    def normalized_times(x, gamma, beta):
        centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        scale = tf.math.rsqrt(tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True) + epsilon)
        normalized = centred * scale

        def gradient(upstream):
            of_gamma, of_beta = (_sum_of_rows(each) for each in (upstream * normalized, upstream))
            by_gamma = upstream * gamma
            mean = tf.reduce_mean(by_gamma, axis=-1, keepdims=True)
            along = tf.reduce_mean(by_gamma * normalized, axis=-1, keepdims=True)
            return (by_gamma - mean - normalized * along) * scale, of_gamma, of_beta

        return normalized * gamma + beta, gradient

    return normalized_times(x, gamma, beta)


def _sum_of_rows(x):
    # BiasAddGrad is up to five times as fast as tf.reduce_sum.
    return tf.raw_ops.BiasAddGrad(out_backprop=x)
