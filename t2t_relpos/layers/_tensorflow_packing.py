"""Rows that are taken at most once each, on TensorFlow: the gradient takes them back."""

import tensorflow as tf

from t2t_relpos._backend import is_compiled_by_xla


@tf.autograph.experimental.do_not_convert
def take_rows(x, places, back):
    """Gathers rows of `[R, H]` at `places`, zeros for -1; `back` is the inverse of `places`."""

    @tf.custom_gradient
    def run(x):
        return _take(x, places), lambda upstream: _take(upstream, back)

    return run(tf.convert_to_tensor(x))


def _take(x, places):
    if is_compiled_by_xla():
        # XLA clamps indices.
        rows = tf.gather(x, tf.maximum(places, 0))
        return tf.where(places[:, None] < 0, tf.zeros([], x.dtype), rows)
    # Zeros if there is no such row: on GPUs always, on CPUs on request.
    return tf.gather_nd(x, places[:, None], bad_indices_policy="IGNORE")
