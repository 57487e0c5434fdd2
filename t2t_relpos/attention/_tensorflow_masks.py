"""What hides keys from queries, all at once or a block of them, and what dropout does to a block's weights."""

import tensorflow as tf

from t2t_relpos.attention import _tensorflow_dropout

HIDDEN = -1e30


@tf.autograph.experimental.do_not_convert
def masked_softmax(scores, mask):
    """Softmax of the entries that may be attended to, zeros elsewhere: weights of zero need no mask in the gradient.

    Args:
        scores: `[.., S]`.
        mask: bool, broadcasts to `scores`.
    """

    @tf.custom_gradient
    def run(scores):
        weights = tf.nn.softmax(tf.where(mask, scores, tf.cast(HIDDEN, scores.dtype)))
        weights = tf.where(mask, weights, tf.zeros([], weights.dtype))

        def gradient(upstream):
            return weights * (upstream - tf.reduce_sum(upstream * weights, -1, keepdims=True))

        return weights, gradient

    return run(scores)


class BlockMasks:
    """What hides keys from a block of a group of heads.

    Args:
        layout: a `Layout`.
        groups: number of groups of heads that a row of the batch has.
        key_mask: bool `[B, S]` or None.
        mask: bool, broadcasts to `[B, N, T, S]`, or None.
        margins: whether there are keys that do not exist.
        blind: whether a query may attend to nothing.
        dtype: of the scores.
    """

    def __init__(self, layout, groups, key_mask, mask, margins, blind, dtype):
        self.layout, self.groups, self.blind = layout, groups, blind
        if margins and key_mask is None:
            key_mask = tf.ones([1, layout.length_k], tf.bool)
        self.bias = (
            None
            if key_mask is None
            else layout.pad_keys(tf.where(key_mask, tf.zeros([], dtype), HIDDEN), -1, HIDDEN)
        )
        self.mask = None if mask is None else self._padded(mask)

    def _padded(self, mask):
        """A mask that broadcasts to `[B, N, T, S]` -> `[1 or B, 1 or N, 1 or all blocks, keys with margins]`."""
        layout = self.layout
        mask = tf.convert_to_tensor(mask)
        mask = tf.reshape(mask, tf.concat([[1] * (4 - len(mask.shape)), tf.shape(mask)], 0))
        mask = tf.broadcast_to(mask, tf.concat([tf.shape(mask)[:-1], [layout.length_k]], 0))
        mask = layout.pad_keys(mask, -1, False)
        return mask if mask.shape[2] == 1 else layout.pad_queries(mask, False)

    def weights(self, scores, group, block):
        """Softmax of the scores of a block `[G, C, keys]` without hidden keys; zeros for a query that may attend to nothing."""
        layout, end = self.layout, tf.shape(scores)[2]
        if layout.causal:
            queries = layout.first(block) + tf.range(layout.block)
            scores = tf.where(
                tf.range(end) > queries[:, None], tf.cast(HIDDEN, scores.dtype), scores
            )
        if self.bias is not None:
            scores += self.bias[tf.minimum(group // self.groups, tf.shape(self.bias)[0] - 1), :end]
        if self.mask is not None:
            scores = tf.where(
                self._mask(tf.shape(scores)[0], group, block)[..., :end],
                scores,
                tf.cast(HIDDEN, scores.dtype),
            )
        weights = tf.nn.softmax(scores)
        if not self.blind:
            return weights
        return weights * tf.cast(
            tf.reduce_max(scores, -1, keepdims=True) > HIDDEN / 10, weights.dtype
        )

    def _mask(self, heads, group, block):
        """The mask of a block of a group of heads: `[1 or G, 1 or C, keys with margins]`."""
        batches, all_heads = tf.unstack(tf.shape(self.mask)[:2])
        first = tf.minimum(group % self.groups * heads, all_heads - 1)
        mask = self.mask[tf.minimum(group // self.groups, batches - 1), first : first + heads]
        return mask if self.mask.shape[2] == 1 else mask[:, self.layout.rows(block)]


class BlockDropout:
    """The dropout mask of a block: the same whenever it is asked for."""

    def __init__(self, layout, rate, seed, dtype):
        self.layout, self.rate, self.seed, self.dtype = layout, rate, seed, dtype

    def factors(self, heads, group, block):
        """0 or 1 / (1 - rate) for the keys that a block looks at: `[G, C, keys]` for so many heads."""
        layout = self.layout
        seed = tf.random.experimental.stateless_fold_in(
            self.seed, group * layout.num_blocks + block
        )
        return _tensorflow_dropout.factors(
            [heads, layout.block, layout.end(block)], self.rate, seed, self.dtype
        )
