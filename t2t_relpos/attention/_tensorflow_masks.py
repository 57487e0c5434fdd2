"""What hides keys from a block of queries, and what dropout does to its weights."""

import tensorflow as tf

from t2t_relpos.attention import _tensorflow_dropout

HIDDEN = -1e30


class BlockMasks:
    """What hides keys, in the parts that a block of a group of heads has: `[1 or G, 1 or C, keys]`.

    Args:
        window: a `Window`.
        groups: number of groups of heads that a row of the batch has.
        key_mask: bool `[B, S]` or None.
        mask: bool, broadcasts to `[B, N, T, S]`, or None.
        dtype: of the scores.
    """

    def __init__(self, window, groups, key_mask, mask, dtype):
        self.window, self.groups = window, groups
        self.bias = None if key_mask is None else tf.where(key_mask, tf.zeros([], dtype), HIDDEN)
        self.mask = None if mask is None else self._padded(mask)

    def _padded(self, mask):
        """A mask that broadcasts to `[B, N, T, S]` -> `[1 or B, 1 or N, 1 or all blocks, S]`."""
        window = self.window
        mask = tf.convert_to_tensor(mask)
        mask = tf.reshape(mask, tf.concat([[1] * (4 - len(mask.shape)), tf.shape(mask)], 0))
        shape = tf.concat([tf.shape(mask)[:-1], [window.length_k]], 0)
        mask = tf.broadcast_to(mask, shape)
        if mask.shape[2] == 1:
            return mask
        missing = window.num_blocks * window.block - shape[2]
        return tf.pad(mask, [[0, 0], [0, 0], [0, missing], [0, 0]])

    def hide(self, inside, outside, group, block):
        """Scores of a block `[G, C, keys]` with those of hidden keys far below all others."""
        window = self.window
        first, end = window.keys(block)
        if window.causal:
            inside = tf.where(window.hidden(block), tf.cast(HIDDEN, inside.dtype), inside)
        if self.bias is not None:
            bias = self.bias[tf.minimum(group // self.groups, tf.shape(self.bias)[0] - 1)]
            inside, outside = inside + bias[first:end], outside + self._outside(bias[None, :, None], block)[..., 0]
        if self.mask is not None:
            mask = self._mask(tf.shape(inside)[0], group)
            mask = mask if self.mask.shape[2] == 1 else mask[:, window.rows(block)]
            inside = tf.where(mask[..., first:end], inside, HIDDEN)
            outside = tf.where(_transposed(self._outside(_transposed(mask), block)), outside, HIDDEN)
        return inside, outside

    def _mask(self, heads, group):
        """The mask of a group of heads: `[1 or G, 1 or all blocks, S]`."""
        batches, all_heads = tf.unstack(tf.shape(self.mask)[:2])
        first = tf.minimum(group % self.groups * heads, all_heads - 1)
        return self.mask[tf.minimum(group // self.groups, batches - 1), first : first + heads]

    def _outside(self, by_key, block):
        return self.window.outside(both_sides(self.window, by_key), block)


class BlockDropout:
    """The dropout mask of a block: the same whenever it is asked for."""

    def __init__(self, window, rate, seed, dtype):
        self.window, self.rate, self.seed, self.dtype = window, rate, seed, dtype

    def factors(self, heads, group, block):
        """0 or 1 / (1 - rate) for the keys inside, and outside of the window: `[G, C, keys]` for so many heads."""
        window = self.window
        seed = tf.random.experimental.stateless_fold_in(self.seed, group * window.num_blocks + block)
        factors = _tensorflow_dropout.factors([heads, window.block, window.length_k], self.rate, seed, self.dtype)
        first, end = window.keys(block)
        inside = end - first
        return factors[..., :inside], factors[..., inside : end if window.causal else window.length_k]


def both_sides(window, x, shift=None):
    """What stands for keys right of a window, with `shift` added, and left of it: `[G, 2S, X]`; `[G, S, X]` without a right."""
    if window.causal:
        return x
    return tf.concat([x if shift is None else x + tf.cast(shift, x.dtype), x], 1)


def _transposed(x):
    return tf.transpose(x, [0, 2, 1])
