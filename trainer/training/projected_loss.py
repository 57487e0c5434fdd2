"""Label-smoothed cross-entropy of tensor2tensor, without a gradient of the logits.

`[tokens, V]` is the largest tensor of a step, and every pass over it takes time. The gradient of
the logits is softmax minus target. The target is constant except at the label, so its products
with states and table are sums of rows, and only the softmax is multiplied. Padding gets no logits,
except with XLA, which needs to know the number of tokens.
"""

import math

import tensorflow as tf

from t2t_relpos import _backend

PADDING = 0
# Smaller probabilities are close to the smallest float32.
_SMALLEST = 1e-30
# A product with so few columns is faster with them on the left.
_FEW = 128


def projected_cross_entropy(
    labels: tf.Tensor, states: tf.Tensor, table: tf.Tensor, label_smoothing: float = 0.0
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the cross-entropy of the logits `states · tableᵀ`, and which tokens are correct.

    The target gives the label the probability 1 - ε and each other word ε / (V - 1). The target's
    entropy is subtracted, so that the smallest possible loss is 0.

    Args:
        labels: ids `[B, T]`, 0 is padding.
        states: `[B, T, D]`.
        table: `[V, D]`, cast to the type of the states.
        label_smoothing: ε, at least 0 and below 1.

    Returns:
        The losses `[B, T]`, and 1.0 for each token whose label is the most probable word `[B, T]`.
        Both are 0 at padding. They have the type of the states, or float32 for 16-bit types.

    Raises:
        ValueError: if label_smoothing is out of range.

    Reference: t2t `smoothing_cross_entropy` and `padded_cross_entropy`.

    Example:

    >>> states = tf.constant([[[1.0, 2.0], [0.0, 1.0]]])
    >>> table = tf.constant([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    >>> losses, right = projected_cross_entropy(tf.constant([[2, 0]]), states, table)
    >>> [round(float(loss), 4) for loss in losses[0]], right.numpy().tolist()
    ([0.1698, 0.0], [[1.0, 0.0]])
    """
    target = _smoothed_target(label_smoothing, table.shape[0])
    ids, states = tf.reshape(labels, [-1]), tf.reshape(states, [-1, table.shape[-1]])
    table = tf.cast(table, states.dtype)
    if _backend.is_compiled_by_xla():
        values = [
            x * tf.cast(ids != PADDING, x.dtype) for x in _cross_entropy(ids, states, table, target)
        ]
    else:
        tokens = tf.where(ids != PADDING)
        values = [
            _scatter(tokens, x, ids)
            for x in _cross_entropy(
                tf.gather_nd(ids, tokens), _gather_rows(tokens, states), table, target
            )
        ]
    losses, right = (tf.reshape(x, tf.shape(labels)) for x in values)
    return losses, right


def _smoothed_target(label_smoothing, vocab_size):
    """Returns the probability of other words, what the label has above it, and the entropy."""
    if not 0 <= label_smoothing < 1:
        raise ValueError(
            f"Expected label_smoothing to be at least 0 and below 1. Received: {label_smoothing}."
        )
    confidence, low = 1 - label_smoothing, label_smoothing / (vocab_size - 1)
    entropy = -confidence * math.log(confidence) - (label_smoothing * math.log(low) if low else 0.0)
    return low, confidence - low, entropy


@tf.custom_gradient
def _gather_rows(indices, states):
    """Returns rows of states, with a dense gradient."""

    def gradient(d_rows):
        return None, _scatter(indices, d_rows, states)

    return tf.gather_nd(states, indices), gradient


def _scatter(indices, values, like):
    return tf.scatter_nd(indices, values, tf.shape(like, out_type=indices.dtype))


def _cross_entropy(labels, states, table, target):
    low, high, entropy = target
    wide = tf.float32 if states.dtype in (tf.float16, tf.bfloat16) else states.dtype
    label_indices = tf.stack([tf.range(tf.size(labels)), tf.cast(labels, tf.int32)], axis=1)

    @tf.custom_gradient
    def losses_and_right(states, table):
        logits = tf.cast(tf.matmul(states, table, transpose_b=True), wide)
        softmax = tf.nn.softmax(logits)
        largest, chosen = tf.reduce_max(logits, axis=-1), tf.gather_nd(logits, label_indices)
        total = _log_sum_exp(softmax, chosen, tf.gather_nd(softmax, label_indices), largest)
        # A matrix product is seven times as fast as a sum over so many rows.
        all_words = tf.linalg.matvec(
            tf.cast(table, wide), tf.ones([table.shape[0]], wide), transpose_a=True
        )
        losses = total - high * chosen - entropy
        if low:
            losses -= low * tf.linalg.matvec(tf.cast(states, wide), all_words)

        def gradient(d_losses, _):
            # Products in the type of the states, sums in the wide one.
            narrow, wide_table = tf.cast(softmax, states.dtype), tf.cast(table, wide)
            weighted = d_losses[:, None] * tf.cast(states, wide)
            d_states = (
                tf.cast(tf.matmul(narrow, table), wide)
                - high * tf.gather(wide_table, labels)
                - low * all_words
            )
            d_table = tf.cast(_matmul_transposed(narrow, tf.cast(weighted, states.dtype)), wide)
            if low:
                d_table -= low * tf.reduce_sum(weighted, axis=0)
            d_table = tf.tensor_scatter_nd_sub(d_table, labels[:, None], high * weighted)
            d_states = tf.cast(d_losses[:, None] * d_states, states.dtype)
            return d_states, tf.cast(d_table, table.dtype)

        return (losses, tf.cast(chosen >= largest, wide)), gradient

    return losses_and_right(states, table)


def _log_sum_exp(softmax, chosen, probability, largest):
    """Returns log-sum-exp of the logits, from a logit of each row and its probability.

    If one of these probabilities is too small for a logarithm, it uses the largest logits.
    """
    return tf.cond(
        tf.reduce_all(probability > _SMALLEST),
        lambda: chosen - tf.math.log(probability),
        # At least 1/V, but this is one more pass over all probabilities.
        lambda: largest - tf.math.log(tf.reduce_max(softmax, axis=-1)),
    )


def _matmul_transposed(left, right):
    """Returns `leftᵀ · right`."""
    if right.shape[-1] <= _FEW:
        return tf.transpose(tf.matmul(right, left, transpose_a=True))
    return tf.matmul(left, right, transpose_a=True)
