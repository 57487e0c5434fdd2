"""Layers on folded weights, written for few operations: rows are flat, `[B * T, D]`."""

import tensorflow as tf


class FoldedLayers:
    """What the layers of one Transformer have in common.

    Args:
        config: a `TransformerConfig`.
    """

    def __init__(self, config):
        self.num_heads = config.num_heads
        self.width = config.hidden_dim
        self.depth = config.hidden_dim // config.num_heads
        self.normalize_first = config.normalize_first
        self.epsilon = config.layer_norm_epsilon

    def normalize(self, x):
        """Rows of mean 0 to variance 1 (and epsilon, inside the root)."""
        return x * tf.math.rsqrt(
            tf.reduce_mean(tf.square(x), axis=-1, keepdims=True) + self.epsilon
        )

    def residual(self, x, layer, name, sublayer):
        """The sum of `x` and what a sub-layer makes of it; `name` says where the layer keeps its
        gain and offset.
        """
        if self.normalize_first:
            return x + sublayer(self.normalize(x))
        x = x + sublayer(x)
        gain, offset = layer["norms"][name]
        return self.normalize(x - tf.reduce_mean(x, axis=-1, keepdims=True)) * gain + offset

    def feed_forward(self, x, layer):
        """The residual of the feed-forward network."""
        weights = layer["feed_forward"]

        def network(y):
            inner = tf.nn.relu(dense(y, weights["inner"], weights["inner_bias"]))
            return dense(inner, weights["outer"], weights["outer_bias"])

        return self.residual(x, layer, "feed_forward", network)

    def split(self, x, batch, length, parts):
        """`[B * T, parts * D]` -> a list of `[B, N, T, H]`."""
        if parts == 1:
            return [
                tf.transpose(
                    tf.reshape(x, [batch, length, self.num_heads, self.depth]), [0, 2, 1, 3]
                )
            ]
        x = tf.reshape(x, [batch, length, parts, self.num_heads, self.depth])
        return tf.unstack(tf.transpose(x, [2, 0, 3, 1, 4]))

    def merge(self, x):
        """`[B, N, T, H]` -> `[B * T, D]`."""
        return tf.reshape(tf.transpose(x, [0, 2, 1, 3]), [-1, self.width])


def dense(x, kernel, bias):
    """`x·kernel + bias`, which TensorFlow computes in one operation."""
    return tf.nn.bias_add(tf.matmul(x, kernel), bias)
