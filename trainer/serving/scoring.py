"""How likely given translations are."""

import tensorflow as tf


def token_log_probs(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Log-probabilities of ids that are given.

    Args:
        logits: float32 `[B, T, V]`, those at `t` of `targets[:, t]`.
        targets: int32 `[B, T]`, padded with 0.

    Returns:
        float32 `[B, T]`, 0 at padding.

    Example:
        >>> logits = tf.math.log([[[0.25, 0.25, 0.5], [0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]])
        >>> tf.exp(token_log_probs(logits, tf.constant([[2, 1, 0]]))).numpy().round(4).tolist()
        [[0.5, 0.5, 1.0]]
    """
    negative = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    return tf.where(targets != 0, -negative, 0.0)
