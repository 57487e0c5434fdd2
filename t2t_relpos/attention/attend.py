"""The one entry to relative attention: every layer calls `attend`."""

from keras import ops

from t2t_relpos._backend import is_tensorflow_without_xla
from t2t_relpos.attention.dropout import AttentionDropout
from t2t_relpos.attention.labelled import label_index, labelled_scores, labelled_values
from t2t_relpos.attention.labels import relative_labels
from t2t_relpos.attention.lookup import lookup_scores, lookup_values
from t2t_relpos.attention.masks import causal_mask, combine_masks, key_padding_mask, masked_softmax
from t2t_relpos.attention.products import times_table
from t2t_relpos.attention.skew import key_to_label, label_to_key

# Longer sequences, where lengths are known, are computed without a [T, S, H] tensor.
LONGEST_LOOKUP = 512
# Longer sequences are taken block by block, where the backend has a way to; in training those above what `_tensorflow_at_once` says.
LONGEST_WHOLE = 256
# Where half of all pairs is hidden, blocks pay sooner.
LONGEST_WHOLE_CAUSAL = 128


def attend(
    query,
    key,
    value,
    key_table=None,
    value_table=None,
    *,
    mask=None,
    query_mask=None,
    key_mask=None,
    causal=False,
    query_offset=None,
    labels=None,
    dropout=None,
    return_weights=True,
    recompute=None,
):
    """Attention whose scores and outputs also depend on relative positions.

    `softmax(q·kᵀ + q·a^Kᵀ)·(v + a^V)`, where `a[i, j]` is the row
    `clip(j - i, -K, K) + K` of a table. Scores are not scaled: scale `query`.

    Args:
        query: `[B, N, T, H]`.
        key: `[B, N, S, H]`.
        value: `[B, N, S, Hv]`.
        key_table: a^K, `[2K + 1, H]` for all heads or `[N, 2K + 1, H]`, or None.
        value_table: a^V, `[2K + 1, Hv]` or `[N, 2K + 1, Hv]`, or None.
        mask: bool, broadcasts to `[B, N, T, S]`; True = attend. A query that
            may attend to nothing gets zeros.
        query_mask: bool `[B, T]`; queries that do not exist get zeros.
        key_mask: bool `[B, S]`; keys that exist.
        causal: whether keys after a query are hidden.
        query_offset: key position of query 0: an int, a scalar tensor, or an
            int tensor `[B]`, a position for every row. Default `S - T`.
        labels: instead of those by position, int labels `[T, S]` or
            `[B, T, S]`, rows of the tables.
        dropout: an `AttentionDropout`, or a function of the weights
            `[B, N, T, S]`, or None.
        return_weights: False allows ways of computing that never make all
            weights.
        recompute: whether the gradient computes the weights again, so that
            memory is linear in length: True, at any length; None, above 256
            positions (128 where `causal`); False, above 4,096 (pairs of
            positions: the square of it), which is faster. On TensorFlow;
            other backends keep them.

    Returns:
        (outputs `[B, N, T, Hv]`, weights before dropout `[B, N, T, S]`, or None
        without `return_weights`).

    Raises:
        ValueError: for `recompute` where there is no way to.

    Reference: Shaw et al. 2018, equations 3 and 4;
    t2t `dot_product_attention_relative`.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.attention import attend
    >>> q = k = v = np.ones((1, 2, 3, 4), "float32")
    >>> table = np.ones((5, 4), "float32")
    >>> outputs, weights = attend(q, k, v, table, table)
    >>> ops.convert_to_numpy(outputs)[0, 0, 0].tolist()
    [2.0, 2.0, 2.0, 2.0]
    """
    lengths = ops.shape(query)[2], ops.shape(key)[2]
    if query_offset is None:
        query_offset = lengths[1] - lengths[0]
    arrays = query, key, value, key_table, value_table

    def hidden():
        return combine_masks(
            mask,
            None if key_mask is None else key_padding_mask(key_mask),
            causal_mask(*lengths, query_offset) if causal else None,
        )

    faster = None
    if not return_weights and labels is None and not _one_offset_per_row(query_offset):
        faster = _faster(*arrays, dropout)
    if recompute and faster is None:
        raise ValueError(
            "Expected `recompute` (`flash_attention` of a layer) to be None or False where attention can't be taken block by block: that "
            "takes TensorFlow without XLA, relative positions by offset, and no weights returned. Received: True"
        )
    if faster is None:
        outputs, weights = _attend_at_once(*arrays, hidden(), query_offset, labels, dropout)
    else:
        settings = {
            "query_offset": query_offset,
            "causal": causal,
            "key_mask": key_mask,
            "mask": combine_masks(mask),
        }
        longest_whole = (
            0
            if recompute
            else min(LONGEST_WHOLE, LONGEST_WHOLE_CAUSAL)
            if causal
            else LONGEST_WHOLE
        )
        settings |= {
            "dropout": dropout,
            "recompute": recompute,
            "longest_whole": longest_whole,
            "hidden": hidden,
        }
        outputs, weights = faster(*arrays, **settings), None
    if query_mask is not None:
        exists = ops.cast(query_mask, "bool")[:, None, :, None]
        outputs, weights = (x if x is None else ops.where(exists, x, 0) for x in (outputs, weights))
    return outputs, weights if return_weights else None


def _faster(query, key, value, key_table, value_table, dropout):
    """A way of this backend that gives outputs alone, or None."""
    if not is_tensorflow_without_xla() or (key_table is None and value_table is None):
        return None
    if not (dropout is None or isinstance(dropout, AttentionDropout)):
        return None
    from t2t_relpos.attention import _tensorflow

    return _tensorflow.attend


def _attend_at_once(query, key, value, key_table, value_table, mask, query_offset, labels, dropout):
    """(outputs, weights) of all pairs of positions at once."""
    scores = ops.matmul(query, ops.swapaxes(key, -1, -2))
    if key_table is not None:
        scores = scores + relative_scores(query, key_table, ops.shape(key)[2], query_offset, labels)
    weights = masked_softmax(scores, mask)
    kept = weights if dropout is None else dropout(weights)
    outputs = ops.matmul(kept, value)
    if value_table is not None:
        outputs = outputs + relative_values(kept, value_table, query_offset, labels)
    return outputs, weights


def relative_scores(query, table, length_k, query_offset, labels=None):
    """`q·a^Kᵀ`: `[B, N, T, H]` and a table -> `[B, N, T, S]`.

    Args as those of `attend`; `length_k` is S.
    """
    if labels is not None:
        if len(labels.shape) == 2:
            return lookup_scores(query, table, labels)
        return labelled_scores(query, table, label_index(labels, table.shape[-2], query.shape[1]))
    length_q = ops.shape(query)[2]
    if _one_offset_per_row(query_offset):
        labels = ops.expand_dims(_labels(length_q, length_k, table, query_offset), 1)
        by_label = times_table(query, table, transpose=True)
        labels = ops.repeat(labels, query.shape[1], axis=1)
        return ops.take_along_axis(by_label, labels, axis=-1)
    if _is_long(length_q, length_k):
        by_label = times_table(query, table, transpose=True)
        return label_to_key(by_label, length_k, query_offset)
    return lookup_scores(query, table, _labels(length_q, length_k, table, query_offset))


def relative_values(weights, table, query_offset, labels=None):
    """`weights·a^V`: `[B, N, T, S]` and a table -> `[B, N, T, Hv]`.

    Args as those of `attend`.
    """
    if labels is not None:
        if len(labels.shape) == 2:
            return lookup_values(weights, table, labels)
        return labelled_values(
            weights, table, label_index(labels, table.shape[-2], weights.shape[1])
        )
    length_q, length_k = ops.shape(weights)[2:]
    if _one_offset_per_row(query_offset):
        labels = _labels(length_q, length_k, table, query_offset)
        member = ops.one_hot(labels, table.shape[-2], dtype=weights.dtype)
        by_label = ops.matmul(weights[..., None, :], member[:, None])[..., 0, :]
        return times_table(by_label, table)
    if _is_long(length_q, length_k):
        return times_table(key_to_label(weights, table.shape[-2], query_offset), table)
    return lookup_values(weights, table, _labels(length_q, length_k, table, query_offset))


def _one_offset_per_row(query_offset):
    return len(getattr(query_offset, "shape", ())) == 1


def _is_long(length_q, length_k):
    """Whether looked-up rows would cost more memory than they save time; no, where lengths are unknown."""
    known = isinstance(length_q, int) and isinstance(length_k, int)
    return known and length_q * length_k > LONGEST_LOOKUP**2


def _labels(length_q, length_k, table, query_offset):
    max_relative_position = (table.shape[-2] - 1) // 2
    return relative_labels(length_q, length_k, max_relative_position, query_offset)
