"""Layer normalization on TensorFlow with a custom gradient: fewer passes over the inputs."""

import tensorflow as tf

from t2t_relpos._backend import accumulation_dtype


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
    sum_dtype = accumulation_dtype(dtype)
    arguments = [tf.cast(each, sum_dtype) for each in (x, gamma, beta)]
    return tf.cast(_normalize(*arguments, epsilon), dtype)


@tf.autograph.experimental.do_not_convert
def _normalize(x, gamma, beta, epsilon):
    @tf.custom_gradient
    def normalized_times(x, gamma, beta):
        centered = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        scale = tf.math.rsqrt(tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True) + epsilon)
        normalized = centered * scale

        def gradient(d_outputs):
            d_gamma = _sum_of_rows(d_outputs * normalized)
            d_beta = _sum_of_rows(d_outputs)
            d_normalized = d_outputs * gamma
            mean = tf.reduce_mean(d_normalized, axis=-1, keepdims=True)
            mean_product = tf.reduce_mean(d_normalized * normalized, axis=-1, keepdims=True)
            return (d_normalized - mean - normalized * mean_product) * scale, d_gamma, d_beta

        return normalized * gamma + beta, gradient

    return normalized_times(x, gamma, beta)


def _sum_of_rows(x):
    # BiasAddGrad is up to five times as fast as tf.reduce_sum.
    return tf.raw_ops.BiasAddGrad(out_backprop=x)
