"""What hides keys from a block of queries, and what dropout does to its weights."""

import tensorflow as tf

from t2t_relpos.attention import _tensorflow_dropout

HIDDEN = -1e30


class BlockMasks:
    """What hides keys, in the parts that a block has: `[1 or C, keys]`."""

    def __init__(self, window, num_heads, key_mask, mask, dtype):
        self.window, self.num_heads = window, num_heads
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

    def hide(self, inside, outside, head, block):
        """Scores of a block with those of hidden keys far below all others."""
        window = self.window
        first, end = window.keys(block)
        if window.causal:
            inside = tf.where(window.hidden(block), tf.cast(HIDDEN, inside.dtype), inside)
        if self.bias is not None:
            bias = self.bias[tf.minimum(head // self.num_heads, tf.shape(self.bias)[0] - 1)]
            inside, outside = inside + bias[first:end], outside + self._outside(bias[:, None], block)[:, 0]
        if self.mask is not None:
            batches, heads, length = tf.unstack(tf.shape(self.mask)[:3])
            mask = self.mask[tf.minimum(head // self.num_heads, batches - 1), tf.minimum(head % self.num_heads, heads - 1)]
            mask = mask if self.mask.shape[2] == 1 else mask[window.rows(block)]
            inside = tf.where(mask[:, first:end], inside, HIDDEN)
            outside = tf.where(tf.transpose(self._outside(tf.transpose(mask), block)), outside, HIDDEN)
        return inside, outside

    def _outside(self, by_key, block):
        return self.window.outside(both_sides(self.window, by_key), block)


class BlockDropout:
    """The dropout mask of a block: the same whenever it is asked for."""

    def __init__(self, window, rate, seed, dtype):
        self.window, self.rate, self.seed, self.dtype = window, rate, seed, dtype

    def factors(self, head, block):
        """0 or 1 / (1 - rate) for the keys inside, and outside of the window."""
        window = self.window
        seed = tf.random.experimental.stateless_fold_in(self.seed, head * window.num_blocks + block)
        factors = _tensorflow_dropout.factors([window.block, window.length_k], self.rate, seed, self.dtype)
        first, end = window.keys(block)
        inside = end - first
        return factors[:, :inside], factors[:, inside : end if window.causal else window.length_k]


def both_sides(window, x, shift=None):
    """What stands for keys right of a window, with `shift` added, and left of it: `[2S, X]`; `[S, X]` without a right."""
    if window.causal:
        return x
    return tf.concat([x if shift is None else x + tf.cast(shift, x.dtype), x], 0)
