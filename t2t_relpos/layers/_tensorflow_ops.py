"""Layer normalization and gathers of rows on TensorFlow, with custom gradients."""

import tensorflow as tf

from t2t_relpos._backend import accumulation_dtype, is_compiled_by_xla


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


@tf.autograph.experimental.do_not_convert
def take_rows(x, indices, inverse_indices):
    """Returns the rows of a matrix at distinct indices, zeros for the index -1.

    No row is gathered twice, so the gradient is a gather too.

    Args:
        x: `[R, H]`.
        indices: int `[P]`, the row of `x` for every output row, or -1.
        inverse_indices: int `[R]`, the output row of every row of `x`, or -1. The gradient uses it.

    Returns:
        `[P, H]`.
    """

    @tf.custom_gradient
    def run(x):
        return _take(x, indices), lambda d_rows: _take(d_rows, inverse_indices)

    return run(tf.convert_to_tensor(x))


def _take(x, indices):
    if x.shape[0] is None and indices.shape[0] is not None:
        # There may be no rows. A gather from an empty tensor would fail.
        empty = lambda: tf.zeros([indices.shape[0], x.shape[1]], x.dtype)
        return tf.cond(tf.shape(x)[0] > 0, lambda: _gather(x, indices), empty)
    return _gather(x, indices)


def _gather(x, indices):
    if is_compiled_by_xla():
        # XLA clamps invalid indices.
        rows = tf.gather(x, tf.maximum(indices, 0))
        return tf.where(indices[:, None] < 0, tf.zeros([], x.dtype), rows)
    # Invalid indices give zeros: always on GPUs, and with this policy on CPUs.
    return tf.gather_nd(x, indices[:, None], bad_indices_policy="IGNORE")
