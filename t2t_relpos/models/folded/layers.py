"""Parts of Transformer layers with folded weights. Inputs and outputs are `[B * T, D]`."""

from keras import ops

from t2t_relpos.models.folded.backend_ops import dense


class FoldedLayers:
    """The parts that encoder and decoder layers share.

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

    def split(self, x, batch, length, parts):
        """Splits `[B * T, parts * D]` into a list of `[B, N, T, H]`."""
        if parts == 1:
            x = ops.reshape(x, (batch, length, self.num_heads, self.depth))
            return [ops.transpose(x, (0, 2, 1, 3))]
        x = ops.reshape(x, (batch, length, parts, self.num_heads, self.depth))
        return ops.unstack(ops.transpose(x, (2, 0, 3, 1, 4)), parts)

    def merge(self, x):
        """Merges the heads: `[B, N, T, H]` -> `[B * T, D]`."""
        return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (-1, self.width))
