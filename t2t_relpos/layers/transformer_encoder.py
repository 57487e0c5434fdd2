"""One block of the Transformer's encoder."""

import keras

from t2t_relpos.layers.layer_mixin import traced_output_spec
from t2t_relpos.layers.transformer_block import TransformerBlock, block_mask, call_attention


@keras.saving.register_keras_serializable(package="t2t_relpos")
class TransformerEncoder(TransformerBlock):
    """Self-attention with relative positions and a feed-forward network, each with a residual.

    Code for `keras_hub.layers.TransformerEncoder` runs with this class and the additional argument
    `max_relative_position`.

    Args:
        intermediate_dim: width of the feed-forward network.
        num_heads: N. Must divide the width of the inputs, unless `key_dim` and `value_dim` are set.
        dropout: rate of the dropout after each sublayer. Default: 0.
        activation: activation function of the feed-forward network. Default: `"relu"`.
        layer_norm_epsilon: epsilon of the layer normalizations. Default: 1e-5.
        kernel_initializer: initializer of all kernels. Default: `"glorot_uniform"`.
        bias_initializer: initializer of all biases. Default: `"zeros"`.
        normalize_first: True for pre-norm, False for post-norm. Default: False.
        max_relative_position: clipping distance K of the self-attention, or a pair (left, right) of
            them. Required unless both tables are off. Default: None.
        use_key_table: whether relative positions are added to keys (a^K). Default: True.
        use_value_table: whether relative positions are added to values (a^V). Default: True.
        share_heads: whether all heads share a table. Default: True.
        use_bias: whether the projections of the attention have biases. Default: True.
        attention_dropout: rate of the dropout of attention weights. Default: None, the same as
            `dropout`.
        activation_dropout: rate of the dropout inside the feed-forward network. Default: 0.0.
        key_dim: size of a head for queries and keys. Default: None, the width of the inputs / N.
        value_dim: size of a head for values. Default: None, the width of the inputs / N.
        sliding_window: in self-attention, a query attends to keys at distances less than this. As
            in `RelativeMultiHeadAttention`. Default: None, no limit.
        flash_attention: True: memory is linear in length at any length, and scores can't be
            returned. As in `RelativeMultiHeadAttention`. Default: None.
        seed: seed of the dropouts. The seeds of the sublayers are derived from it. Default: None, a
            random seed.
        **kwargs: `name`, `dtype`, `trainable` of `keras.layers.Layer`.

    Call arguments:
        inputs: `[B, S, D]`.
        padding_mask: bool `[B, S]`, True = a token. It replaces the mask of a mask_zero embedding.
            Default: that mask.
        attention_mask: bool `[B, S, S]` or `[S, S]`, True = attend. Default: None.
        training: whether dropout is applied. Default: Keras's training mode.
        return_attention_scores: whether to return (outputs, scores). Default: False.
        packing: a `Packing` `[B, S]`. Inputs and outputs are then `[1, P, D]`. Default: None.

    Attributes:
        self_attention: a `RelativeMultiHeadAttention`.
        feed_forward: a `FeedForward`.
        self_attention_residual: the `Residual` of the self-attention.
        feed_forward_residual: the `Residual` of the feed-forward network.

    Returns:
        outputs `[B, S, D]`; if requested, (outputs, attention scores `[B, N, S, S]`).

    Raises:
        ValueError: if an argument is out of range, N does not divide D, or a mask has the wrong
            shape or a float dtype.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.layers import TransformerEncoder
    >>> layer = TransformerEncoder(intermediate_dim=16, num_heads=2, max_relative_position=4)
    >>> tuple(layer(np.ones((3, 5, 8))).shape)
    (3, 5, 8)
    """

    def build(self, inputs_shape):
        self._build_sublayers("inputs", inputs_shape)

    def call(
        self,
        inputs,
        padding_mask=None,
        attention_mask=None,
        training=None,
        return_attention_scores=False,
        packing=None,
    ):
        residual = self.self_attention_residual
        x = residual.before(inputs)
        masks = (padding_mask, attention_mask)
        outputs = call_attention(
            self.self_attention,
            x,
            x,
            padding_mask,
            (packing, packing),
            attention_mask=block_mask(inputs, inputs, masks, packed=packing is not None),
            return_attention_scores=return_attention_scores,
            training=training,
        )
        outputs, scores = outputs if return_attention_scores else (outputs, None)
        x = self._feed(residual.after(inputs, outputs, training=training), training=training)
        return (x, scores) if return_attention_scores else x

    def compute_output_shape(self, inputs_shape, *shapes):
        self._check_shape("inputs", inputs_shape)
        return tuple(inputs_shape)

    def compute_output_spec(self, inputs, *args, **kwargs):
        if not self.built:
            self.build(inputs.shape)
        return traced_output_spec(self, inputs, *args, **kwargs)
