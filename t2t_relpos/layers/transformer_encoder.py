"""One layer of the Transformer's encoder."""

import keras

from t2t_relpos.layers.feed_forward import FeedForward
from t2t_relpos.layers.relative_multi_head_attention import RelativeMultiHeadAttention
from t2t_relpos.layers.residual import Residual


def key_mask_of(inputs, padding_mask):
    """`[B, 1, S]` from a given mask, or from the one that Keras attached, or None."""
    if padding_mask is None:
        padding_mask = getattr(inputs, "_keras_mask", None)
    return None if padding_mask is None else padding_mask[:, None, :]


@keras.saving.register_keras_serializable(package="t2t_relpos")
class TransformerEncoder(keras.layers.Layer):
    """Self-attention and a feed-forward network, each with its residual.

    Args:
        intermediate_dim: width of the feed-forward network.
        num_heads: N.
        max_relative_position: K of the self-attention; `None` with both tables
            off.
        use_key_table, use_value_table, share_heads: see
            `RelativeMultiHeadAttention`.
        normalize_first: pre-norm (True) or post-norm (False).
        use_bias: whether the attention's projections have biases.
        dropout: rate on what each sub-layer gives.
        attention_dropout: rate on attention weights.
        activation_dropout: rate inside the feed-forward network.
        layer_norm_epsilon: inside the root.
        seed: of the dropouts.
        **kwargs: `name`, `dtype`, `trainable` of `keras.layers.Layer`.

    Call arguments:
        inputs: `[B, S, D]`; N must divide D.
        padding_mask: bool `[B, S]`, True = a real position; default the mask of a
            mask_zero embedding. Padding is hidden as a key.
        training: whether dropouts are on.
        packing: a `Packing` `[B, S]`: inputs and outputs are `[1, P, D]`, all
            tokens one after the other.

    Returns:
        `[B, S, D]`.

    Raises:
        ValueError: N does not divide D.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.layers import TransformerEncoder
    >>> layer = TransformerEncoder(intermediate_dim=16, num_heads=2, max_relative_position=4)
    >>> tuple(layer(np.ones((3, 5, 8))).shape)
    (3, 5, 8)
    """

    def __init__(
        self,
        intermediate_dim,
        num_heads,
        max_relative_position=None,
        use_key_table=True,
        use_value_table=True,
        share_heads=True,
        normalize_first=True,
        use_bias=False,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        layer_norm_epsilon=1e-6,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.intermediate_dim = intermediate_dim
        self.num_heads = num_heads
        self.max_relative_position = max_relative_position
        self.use_key_table = use_key_table
        self.use_value_table = use_value_table
        self.share_heads = share_heads
        self.normalize_first = normalize_first
        self.use_bias = use_bias
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation_dropout = activation_dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.seed = seed
        self.supports_masking = True

    def build(self, inputs_shape, padding_mask_shape=None):
        self.self_attention = self.make_attention("self_attention", inputs_shape[-1])
        self.self_attention.build(inputs_shape, inputs_shape)
        self.self_attention_residual = self.make_residual("self_attention_residual", inputs_shape)
        self.feed_forward = FeedForward(
            self.intermediate_dim,
            self.activation_dropout,
            seed=self.seed,
            dtype=self.dtype_policy,
            name="feed_forward",
        )
        self.feed_forward.build(inputs_shape)
        self.feed_forward_residual = self.make_residual("feed_forward_residual", inputs_shape)

    def make_attention(self, name, width, relative=True):
        """A self-attention, or one with or without (`relative`) positions to another sequence."""
        if width % self.num_heads:
            raise ValueError(
                "Expected `num_heads` to divide the width of the inputs. "
                f"Received: num_heads={self.num_heads}, width {width}."
            )
        return RelativeMultiHeadAttention(
            num_heads=self.num_heads,
            key_dim=width // self.num_heads,
            max_relative_position=self.max_relative_position if relative else None,
            use_key_table=relative and self.use_key_table,
            use_value_table=relative and self.use_value_table,
            share_heads=self.share_heads,
            use_bias=self.use_bias,
            dropout=self.attention_dropout,
            seed=self.seed,
            dtype=self.dtype_policy,
            name=name,
        )

    def make_residual(self, name, input_shape):
        residual = Residual(
            self.normalize_first,
            self.dropout,
            self.layer_norm_epsilon,
            seed=self.seed,
            dtype=self.dtype_policy,
            name=name,
        )
        residual.build(input_shape)
        return residual

    def call(self, inputs, padding_mask=None, training=None, packing=None):
        mask = key_mask_of(inputs, padding_mask)
        packings = {"query_packing": packing, "value_packing": packing}
        x = self.self_attention_residual(
            inputs,
            sublayer=lambda y: self.self_attention(
                y, y, attention_mask=mask, training=training, **packings
            ),
            training=training,
        )
        return self.feed_forward_residual(
            x, sublayer=lambda y: self.feed_forward(y, training=training), training=training
        )

    def get_config(self):
        names = (
            "intermediate_dim num_heads max_relative_position use_key_table use_value_table "
            "share_heads normalize_first use_bias dropout attention_dropout activation_dropout "
            "layer_norm_epsilon seed"
        )
        return {**super().get_config(), **{name: getattr(self, name) for name in names.split()}}
