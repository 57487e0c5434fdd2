"""Gathers rows on TensorFlow. No row is gathered twice, so the gradient is a gather too."""

import tensorflow as tf

from t2t_relpos._backend import is_compiled_by_xla


@tf.autograph.experimental.do_not_convert
def take_rows(x, indices, inverse_indices):
    """Returns the rows of a matrix at distinct indices, zeros for the index -1.

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
