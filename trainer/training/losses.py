"""Label-smoothed cross-entropy of tensor2tensor, without a dense matrix of targets."""

import math
from typing import NamedTuple

import tensorflow as tf

PADDING = 0


def token_cross_entropy(
    labels: tf.Tensor, logits: tf.Tensor, label_smoothing: float = 0.0
) -> tuple[tf.Tensor, tf.Tensor]:
    """Cross-entropy of every token, and whether it is the most probable one.

    The target gives the label the probability 1 - ε and each other word ε / (V - 1). The target's
    own entropy is subtracted, so that the smallest possible loss is 0; this changes no gradient.
    Positions with the label 0 are padding: they count nothing.

    Args:
        labels: ids `[B, T]`, 0 is padding.
        logits: `[B, T, V]`.
        label_smoothing: ε, at least 0 and below 1.

    Returns:
        The losses `[B, T]` and 1.0 for each right token `[B, T]`, both 0 where the label is
        padding, and in the type of the logits, or float32 for types of 16 bits.

    Raises:
        ValueError: for a label smoothing out of range.

    Reference: t2t `smoothing_cross_entropy` and `padded_cross_entropy`.

    Example:

    >>> logits = tf.constant([[[0.0, 1.0, 3.0], [2.0, 0.0, 0.0]]])
    >>> losses, right = token_cross_entropy(tf.constant([[2, 0]]), logits)
    >>> [round(float(loss), 4) for loss in losses[0]], right.numpy().tolist()
    ([0.1698, 0.0], [[1.0, 0.0]])
    """
    target = SmoothedTarget.of(label_smoothing, logits.shape[-1])
    if logits.dtype in (tf.float16, tf.bfloat16):
        logits = tf.cast(logits, tf.float32)
    losses, right = _cross_entropy(
        tf.reshape(labels, [-1]), tf.reshape(logits, [-1, tf.shape(logits)[-1]]), target
    )
    return without_padding(labels, losses), without_padding(labels, right)


class SmoothedTarget(NamedTuple):
    """What the target gives each word.

    Args:
        low: the probability of every word but the label.
        high: what the label has above that.
        entropy: the target's own.
    """

    low: float
    high: float
    entropy: float

    @classmethod
    def of(cls, label_smoothing: float, vocab_size: int) -> "SmoothedTarget":
        """The target of a label smoothing ε among so many words.

        Raises:
            ValueError: where ε is below 0, or not below 1.
        """
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                "Expected label_smoothing to be at least 0 and below 1. Received: "
                f"{label_smoothing}."
            )
        confidence, low = 1 - label_smoothing, label_smoothing / (vocab_size - 1)
        entropy = -confidence * math.log(confidence) - (
            label_smoothing * math.log(low) if low else 0.0
        )
        return cls(low, confidence - low, entropy)


def without_padding(labels: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Values of all tokens, one after the other, in the shape of their labels, and 0 where the
    label is padding.
    """
    return tf.reshape(values, tf.shape(labels)) * tf.cast(labels != PADDING, values.dtype)


def _cross_entropy(labels, logits, target):
    place = tf.stack([tf.range(tf.size(labels)), tf.cast(labels, tf.int32)], axis=1)
    largest = tf.stop_gradient(tf.reduce_max(logits, axis=-1))
    shifted = logits - largest[:, None]
    chosen = tf.gather_nd(shifted, place)
    losses = (
        tf.math.log(tf.reduce_sum(tf.exp(shifted), axis=-1)) - target.high * chosen - target.entropy
    )
    if target.low:
        losses -= target.low * tf.reduce_sum(shifted, axis=-1)
    return losses, tf.cast(chosen >= 0, logits.dtype)
