"""The training loss straight from what the decoder gives, without a gradient of the logits.

`[tokens, vocabulary]` is by far the largest tensor of a step, and every pass over it counts. Of the
gradient of the logits, softmax minus target, the target's part is the same for all words but one:
its products with states and table are sums of rows. So only the softmax is multiplied, as it is.
Padding has no logits, but with XLA, which must know how many tokens there are.
"""

import tensorflow as tf

from t2t_relpos import _backend
from trainer.training.losses import PADDING, SmoothedTarget, without_padding

# Smaller probabilities are near those that types of 32 bits can't tell from 0.
_SMALLEST = 1e-30
# So few columns are faster on the left of a product.
_FEW = 128


def projected_cross_entropy(
    labels: tf.Tensor, states: tf.Tensor, table: tf.Tensor, label_smoothing: float = 0.0
) -> tuple[tf.Tensor, tf.Tensor]:
    """`token_cross_entropy` of the logits `states · tableᵀ`, in fewer passes over them.

    Args:
        labels: ids `[B, T]`, 0 is padding.
        states: `[B, T, D]`.
        table: `[V, D]`, the vector of each word; it is multiplied in the type of the states.
        label_smoothing: ε, at least 0 and below 1.

    Returns:
        The losses `[B, T]` and 1.0 for each right token `[B, T]`, both 0 where the label is
        padding, and in the type of the states, or float32 for types of 16 bits.

    Raises:
        ValueError: for a label smoothing out of range.

    Example:

    >>> states = tf.constant([[[1.0, 2.0], [0.0, 1.0]]])
    >>> table = tf.constant([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    >>> losses, right = projected_cross_entropy(tf.constant([[2, 0]]), states, table)
    >>> [round(float(loss), 4) for loss in losses[0]], right.numpy().tolist()
    ([0.1698, 0.0], [[1.0, 0.0]])
    """
    target = SmoothedTarget.of(label_smoothing, table.shape[0])
    ids, states = tf.reshape(labels, [-1]), tf.reshape(states, [-1, table.shape[-1]])
    table = tf.cast(table, states.dtype)
    if _backend.is_compiled_by_xla():
        return tuple(without_padding(labels, x) for x in _cross_entropy(ids, states, table, target))
    places = tf.where(ids != PADDING)
    of_tokens = _cross_entropy(tf.gather_nd(ids, places), _rows_at(places, states), table, target)
    return tuple(tf.reshape(_put_back(places, x, ids), tf.shape(labels)) for x in of_tokens)


@tf.custom_gradient
def _rows_at(places, states):
    """Rows of states, with a dense gradient."""
    return tf.gather_nd(states, places), lambda upstream: (
        None,
        _put_back(places, upstream, states),
    )


def _put_back(places, values, like):
    """Values in their places among zeros."""
    return tf.scatter_nd(places, values, tf.shape(like, out_type=places.dtype))


def _cross_entropy(labels, states, table, target):
    low, high, entropy = target
    wide = tf.float32 if states.dtype in (tf.float16, tf.bfloat16) else states.dtype
    place = tf.stack([tf.range(tf.size(labels)), tf.cast(labels, tf.int32)], axis=1)

    @tf.custom_gradient
    def losses_and_right(states, table):
        logits = tf.cast(tf.matmul(states, table, transpose_b=True), wide)
        softmax = tf.nn.softmax(logits)
        largest, chosen = tf.reduce_max(logits, axis=-1), tf.gather_nd(logits, place)
        total = _log_sum_exp(softmax, chosen, tf.gather_nd(softmax, place), largest)
        # A product: a sum over so many rows takes seven times as long.
        all_words = tf.linalg.matvec(
            tf.cast(table, wide), tf.ones([table.shape[0]], wide), transpose_a=True
        )
        losses = total - high * chosen - entropy
        if low:
            losses -= low * tf.linalg.matvec(tf.cast(states, wide), all_words)

        def gradient(upstream, _):
            # Products in the type of the states, sums in the wide one.
            narrow, wide_table = tf.cast(softmax, states.dtype), tf.cast(table, wide)
            weighted = upstream[:, None] * tf.cast(states, wide)
            to_states = (
                tf.cast(tf.matmul(narrow, table), wide)
                - high * tf.gather(wide_table, labels)
                - low * all_words
            )
            to_table = tf.cast(_left_transposed(narrow, tf.cast(weighted, states.dtype)), wide)
            if low:
                to_table -= low * tf.reduce_sum(weighted, axis=0)
            to_table = tf.tensor_scatter_nd_sub(to_table, labels[:, None], high * weighted)
            return tf.cast(upstream[:, None] * to_states, states.dtype), tf.cast(
                to_table, table.dtype
            )

        return (losses, tf.cast(chosen >= largest, wide)), gradient

    return losses_and_right(states, table)


def _log_sum_exp(softmax, chosen, probability, largest):
    """Of logits, from one of each row and its probability, where that has a logarithm for all
    rows; else from their largest.
    """
    return tf.cond(
        tf.reduce_all(probability > _SMALLEST),
        lambda: chosen - tf.math.log(probability),
        # At least 1/V: its logarithm is safe, at the price of a pass over all probabilities.
        lambda: largest - tf.math.log(tf.reduce_max(softmax, axis=-1)),
    )


def _left_transposed(left, right):
    """`leftᵀ · right`, of many columns and few; with the few on the left it is faster where they
    are very few.
    """
    if right.shape[-1] <= _FEW:
        return tf.transpose(tf.matmul(right, left, transpose_a=True))
    return tf.matmul(left, right, transpose_a=True)
