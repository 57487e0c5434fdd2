"""Products, attention and residuals of folded layers, with few operations on each backend."""

import keras
import numpy as np
from keras import ops

from t2t_relpos.attention.masks import masked_softmax


def take_rows(table, ids):
    """Returns `table[ids]` for ids that are not negative."""
    if keras.backend.backend() == "tensorflow":
        from t2t_relpos.attention.tensorflow import ops as tensorflow_ops

        return tensorflow_ops.take_rows(table, ids)
    return ops.take(table, ids, axis=0)


def dense(x, kernel, bias=None):
    """Returns `x·kernel + bias`, computing the product in the dtype of the kernel."""
    dtype = keras.backend.standardize_dtype(kernel.dtype)
    if dtype == keras.backend.standardize_dtype(x.dtype):
        product = ops.matmul(x, kernel)
    else:
        product = ops.cast(ops.matmul(ops.cast(x, dtype), kernel), x.dtype)
    return product if bias is None else ops.add(product, bias)


def matmul_transposed(x, y):
    """Returns `x·yᵀ` over the last two axes."""
    if keras.backend.backend() == "tensorflow":
        from t2t_relpos.attention.tensorflow import ops as tensorflow_ops

        return tensorflow_ops.matmul_transposed(x, y)
    return ops.matmul(x, ops.swapaxes(y, -1, -2))


def matmul_table(x, table, shape, *, transpose_table=False):
    """Returns `[B, N, T, X]` times a table `[X, Y]` or `[N, X, Y]`.

    Args:
        x: `[B, N, T, X]`.
        table: `[X, Y]`, or `[N, X, Y]` for separate tables of the heads.
        shape: shape of the result, `(B, N, T, Y)`. Reading it from tensors would take a few more
            operations in a graph.
        transpose_table: whether the table is `[Y, X]` or `[N, Y, X]`.
    """
    # With one head, a product of rank 4 is wrong: see `t2t_relpos.attention.gather`.
    if len(table.shape) == 3 and table.shape[0] == 1:
        table = table[0]
    multiply = matmul_transposed if transpose_table else ops.matmul
    if len(table.shape) == 3:
        return multiply(x, table)
    width = table.shape[-1] if transpose_table else ops.shape(table)[-2]
    return ops.reshape(multiply(ops.reshape(x, (-1, width)), table), shape)


# Added to a score, it makes the attention weight exactly 0 in float32.
MASKED_SCORE = -1e9


def attend(query, key, value, bias, tables, shapes, *, keys_per_row=1):
    """Returns attention outputs `[B, N, k, H]`.

    Args:
        query: `[B, N, k, H]`.
        key: `[B, N, S, H]`.
        value: `[B, N, S, H]`.
        bias: added to the scores, broadcasts to `[B, N, k, S]`.
        tables: `key_table` and `value_table`. Row r, of `[R, H]` or `[N, R, H]`, is that of the
            keys from `r * keys_per_row` to `(r + 1) * keys_per_row - 1`.
        shapes: shapes of the products with these tables, `(B, N, k, R)` and `(B, N, k, H)`.
        keys_per_row: number of consecutive keys with the same table rows, an int. Default: 1.
    """
    scores = matmul_transposed(query, key)
    if "key_table" in tables:
        by_row = matmul_table(query, tables["key_table"], shapes["key_table"], transpose_table=True)
        if keys_per_row > 1:
            by_row = ops.repeat(by_row, keys_per_row, axis=-1)
        scores = scores + by_row
    weights = masked_softmax(scores + bias)
    outputs = ops.matmul(weights, value)
    if "value_table" in tables:
        if keys_per_row > 1:
            weights = ops.reshape(weights, (*shapes["value_table"][:3], -1, keys_per_row))
            weights = ops.sum(weights, axis=-1)
        outputs = outputs + matmul_table(weights, tables["value_table"], shapes["value_table"])
    return outputs


NAMES = ("key_table", "value_table")


def has_tables(attention):
    """Returns whether an attention has a relative-position table."""
    return any(name in attention for name in NAMES)


def table_rows(attention, ids):
    """Returns a dict of the rows `ids` of each table: `[S, H]`, or `[N, S, H]` per head."""
    return {name: ops.take(attention[name], ids, axis=-2) for name in NAMES if name in attention}


class FoldedLayers:
    """The parts that encoder and decoder layers share.

    Args:
        config: a `TransformerConfig`.
    """

    def __init__(self, config):
        self.num_heads = config.num_heads
        self.key_dim, self.value_dim = config.head_dims
        self.normalize_first = config.normalize_first
        self.epsilon = config.layer_norm_epsilon

    def normalize(self, x):
        """Returns `x`, whose rows have mean 0, scaled to variance 1."""
        mean_square = ops.mean(ops.square(x), axis=-1, keepdims=True)
        return x * ops.rsqrt(mean_square + self.epsilon)

    def enter(self, x):
        """Returns the input of a sublayer, or of the last projection, from the residual stream."""
        return self.normalize(x) if self.normalize_first else x

    def leave(self, x, outputs, layer, name):
        """Returns the residual stream `x` after a sublayer.

        Args:
            x: `[rows, D]`.
            outputs: the sublayer's outputs `[rows, D]`.
            layer: weights of the layer.
            name: key of the sublayer in `layer["norms"]`.
        """
        x = x + outputs
        if self.normalize_first:
            return x
        gain, offset = layer["norms"][name]
        return self.normalize(x - ops.mean(x, axis=-1, keepdims=True)) * gain + offset

    def feed_forward(self, x, layer):
        """Returns the residual stream after the feed-forward network."""
        weights = layer["feed_forward"]
        inner = ops.relu(dense(self.enter(x), weights["inner"], weights["inner_bias"]))
        outputs = dense(inner, weights["outer"], weights["outer_bias"])
        return self.leave(x, outputs, layer, "feed_forward")

    def split(self, x, batch, length, kinds):
        """Splits projections `[B * T, ..]` into a list of `[B, N, T, H]` and `[B, N, T, Hv]`.

        Args:
            x: the projections, next to each other.
            batch: B.
            length: T.
            kinds: a character for each: "q", "k" or "v".
        """
        depths = [self.value_dim if kind == "v" else self.key_dim for kind in kinds]
        if len(depths) == 1:
            x = ops.reshape(x, (batch, length, self.num_heads, depths[0]))
            return [ops.transpose(x, (0, 2, 1, 3))]
        if self.key_dim == self.value_dim:
            x = ops.reshape(x, (batch, length, len(depths), self.num_heads, self.key_dim))
            return ops.unstack(ops.transpose(x, (2, 0, 3, 1, 4)), len(depths))
        ends = np.cumsum(depths) * self.num_heads
        parts = zip(ops.split(x, [int(end) for end in ends[:-1]], axis=1), kinds)
        return [part for x, kind in parts for part in self.split(x, batch, length, kind)]

    def merge(self, x):
        """Merges the heads: `[B, N, T, Hv]` -> `[B * T, N * Hv]`."""
        width = self.num_heads * self.value_dim
        return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (-1, width))
