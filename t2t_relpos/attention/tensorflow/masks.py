"""Masks of a block of queries on TensorFlow."""

import tensorflow as tf

from t2t_relpos.attention.masks import MASKED_SCORE


class BlockMasks:
    """Masks the scores of a block of queries of one group of heads.

    Args:
        layout: a `BlockLayout`.
        groups_per_entry: number of groups of heads of a batch entry.
        key_mask: bool `[B, S]` or None.
        mask: bool, broadcasts to `[B, N, T, S]`, or None.
        may_be_fully_masked: whether a query may have no valid keys.
        dtype: dtype of the scores.
    """

    def __init__(self, layout, groups_per_entry, *, key_mask, mask, may_be_fully_masked, dtype):
        self._layout, self._groups_per_entry = layout, groups_per_entry
        self.may_be_fully_masked = may_be_fully_masked
        if layout.may_be_padded and key_mask is None:
            key_mask = tf.ones([1, layout.length_k], tf.bool)
        self._key_bias = None
        if key_mask is not None:
            bias = tf.where(key_mask, tf.zeros([], dtype), MASKED_SCORE)
            self._key_bias = layout.pad_keys(bias, -1, MASKED_SCORE)
        self._mask = None if mask is None else self._pad(mask)

    def _pad(self, mask):
        """Pads a mask to `[1 or B, 1 or N, 1 or all blocks' queries, padded keys]`."""
        layout = self._layout
        mask = tf.convert_to_tensor(mask)
        mask = tf.reshape(mask, tf.concat([[1] * (4 - len(mask.shape)), tf.shape(mask)], 0))
        mask = tf.broadcast_to(mask, tf.concat([tf.shape(mask)[:-1], [layout.length_k]], 0))
        mask = layout.pad_keys(mask, -1, False)
        return mask if mask.shape[2] == 1 else layout.pad_queries(mask, False)

    def softmax(self, scores, group, block):
        """Returns the weights of a block's scores `[G, C, keys]`; zeros if fully masked."""
        layout, end = self._layout, tf.shape(scores)[2]
        masked = tf.cast(MASKED_SCORE, scores.dtype)
        if layout.causal:
            queries = layout.first(block) + tf.range(layout.block)
            scores = tf.where(tf.range(end) > queries[:, None], masked, scores)
        if self._key_bias is not None:
            last = tf.shape(self._key_bias)[0] - 1
            scores += self._key_bias[tf.minimum(group // self._groups_per_entry, last), :end]
        if self._mask is not None:
            mask = self._block_mask(tf.shape(scores)[0], group, block)
            scores = tf.where(mask[..., :end], scores, masked)
        weights = tf.nn.softmax(scores)
        if not self.may_be_fully_masked:
            return weights
        has_valid_key = tf.reduce_max(scores, -1, keepdims=True) > MASKED_SCORE / 10
        return weights * tf.cast(has_valid_key, weights.dtype)

    def _block_mask(self, heads, group, block):
        """Returns the mask of a block: `[1 or G, 1 or C, padded keys]`."""
        batch_size, num_heads = tf.unstack(tf.shape(self._mask)[:2])
        first = tf.minimum(group % self._groups_per_entry * heads, num_heads - 1)
        entry = tf.minimum(group // self._groups_per_entry, batch_size - 1)
        mask = self._mask[entry, first : first + heads]
        return mask if self._mask.shape[2] == 1 else mask[:, self._layout.query_slice(block)]
