"""One block of the Transformer's encoder."""

import keras

from t2t_relpos import _checks
from t2t_relpos.layers import call_checks
from t2t_relpos.layers.block_mask import block_mask, replace_attached_mask
from t2t_relpos.layers.feed_forward import FeedForward
from t2t_relpos.layers.layer_mixin import LayerMixin
from t2t_relpos.layers.quantized_dtype import quantized_dtype
from t2t_relpos.layers.relative_multi_head_attention import RelativeMultiHeadAttention
from t2t_relpos.layers.residual import Residual
from t2t_relpos.layers.sublayer_seed import sublayer_seed

# The order of their seeds.
_SUBLAYERS = (
    "self_attention",
    "self_attention_residual",
    "feed_forward",
    "feed_forward_residual",
    "cross_attention",
    "cross_attention_residual",
)


@keras.saving.register_keras_serializable(package="t2t_relpos")
class TransformerEncoder(LayerMixin, keras.layers.Layer):
    """Self-attention with relative positions and a feed-forward network, each with a residual.

    Code for `keras_hub.layers.TransformerEncoder` runs with this class and the additional argument
    `max_relative_position`.

    Args:
        intermediate_dim: width of the feed-forward network.
        num_heads: N. Must divide the width of the inputs.
        dropout: rate of the dropout after each sublayer. Default: 0.
        activation: activation function of the feed-forward network. Default: `"relu"`.
        layer_norm_epsilon: epsilon of the layer normalizations. Default: 1e-5.
        kernel_initializer: initializer of all kernels. Default: `"glorot_uniform"`.
        bias_initializer: initializer of all biases. Default: `"zeros"`.
        normalize_first: True for pre-norm, False for post-norm. Default: False.
        max_relative_position: clipping distance K of the self-attention. Required unless both
            tables are off. Default: None.
        use_key_table: whether relative positions are added to keys (a^K). Default: True.
        use_value_table: whether relative positions are added to values (a^V). Default: True.
        share_heads: whether all heads share a table. Default: True.
        use_bias: whether the projections of the attention have biases. Default: True.
        attention_dropout: rate of the dropout of attention weights. Default: None, the same as
            `dropout`.
        activation_dropout: rate of the dropout inside the feed-forward network. Default: 0.0.
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

    def __init__(
        self,
        intermediate_dim,
        num_heads,
        dropout=0,
        activation="relu",
        layer_norm_epsilon=1e-05,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        normalize_first=False,
        *,
        max_relative_position=None,
        use_key_table=True,
        use_value_table=True,
        share_heads=True,
        use_bias=True,
        attention_dropout=None,
        activation_dropout=0.0,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.intermediate_dim = _checks.positive_int("intermediate_dim", intermediate_dim)
        self.num_heads = _checks.positive_int("num_heads", num_heads)
        self.dropout = _checks.rate("dropout", dropout)
        self.activation = keras.activations.get(activation)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.normalize_first = normalize_first
        if use_key_table or use_value_table:
            max_relative_position = _checks.max_relative_position(max_relative_position)
        self.max_relative_position = max_relative_position
        self.use_key_table = use_key_table
        self.use_value_table = use_value_table
        self.share_heads = share_heads
        self.use_bias = use_bias
        self.attention_dropout = (
            self.dropout
            if attention_dropout is None
            else _checks.rate("attention_dropout", attention_dropout)
        )
        self.activation_dropout = _checks.rate("activation_dropout", activation_dropout)
        self.seed = seed
        self.supports_masking = True

    def build(self, inputs_shape):
        self._check_shape("inputs", inputs_shape)
        self.self_attention = self._make_attention("self_attention", inputs_shape[-1])
        self.self_attention.build(inputs_shape, inputs_shape)
        self.self_attention_residual = self._make_residual("self_attention_residual", inputs_shape)
        self.feed_forward = FeedForward(
            self.intermediate_dim,
            self.activation_dropout,
            activation=self.activation,
            kernel_initializer=self.kernel_initializer,
            bias_initializer=self.bias_initializer,
            **self._common_arguments("feed_forward"),
        )
        self.feed_forward.build(inputs_shape)
        self.feed_forward_residual = self._make_residual("feed_forward_residual", inputs_shape)

    def _check_shape(self, name, shape):
        """Raises ValueError unless inputs are `[B, S, D]`, and N divides D."""
        call_checks.sequence_shape(name, shape)
        if shape[-1] % self.num_heads:
            raise ValueError(
                "Expected `num_heads` to divide the width of the inputs. "
                f"Received: num_heads={self.num_heads}, width {shape[-1]}."
            )
        if self.built:
            call_checks.width(name, shape, self.self_attention.query_dense.input_spec.axes[-1])

    def _make_attention(self, name, width, *, relative=True):
        """Returns an attention layer with relative positions, or without (`relative=False`)."""
        return RelativeMultiHeadAttention(
            num_heads=self.num_heads,
            key_dim=width // self.num_heads,
            dropout=self.attention_dropout,
            use_bias=self.use_bias,
            kernel_initializer=self.kernel_initializer,
            bias_initializer=self.bias_initializer,
            max_relative_position=self.max_relative_position if relative else None,
            use_key_table=relative and self.use_key_table,
            use_value_table=relative and self.use_value_table,
            share_heads=self.share_heads,
            **self._common_arguments(name),
        )

    def _make_residual(self, name, input_shape):
        residual = Residual(
            self.normalize_first,
            self.dropout,
            self.layer_norm_epsilon,
            **self._common_arguments(name),
        )
        residual.build(input_shape)
        return residual

    def _common_arguments(self, name):
        """Returns the arguments that all sublayers have."""
        return {
            "seed": sublayer_seed(self.seed, _SUBLAYERS.index(name)),
            "dtype": self.dtype_policy,
            "trainable": self.trainable,
            "name": name,
        }

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
        mask = block_mask(inputs, inputs, masks, packed=packing is not None)
        outputs = self.self_attention(
            x,
            x,
            attention_mask=mask,
            return_attention_scores=return_attention_scores,
            training=training,
            query_packing=packing,
            value_packing=packing,
            **replace_attached_mask(x, padding_mask, "query_mask", "value_mask"),
        )
        outputs, scores = outputs if return_attention_scores else (outputs, None)
        x = self._feed(residual.after(inputs, outputs, training=training), training=training)
        return (x, scores) if return_attention_scores else x

    def _feed(self, x, *, training=None):
        """Returns the outputs of the feed-forward network with its residual."""
        residual = self.feed_forward_residual
        outputs = self.feed_forward(residual.before(x), training=training)
        return residual.after(x, outputs, training=training)

    def compute_output_shape(self, inputs_shape, *shapes):
        self._check_shape("inputs", inputs_shape)
        return tuple(inputs_shape)

    def compute_output_spec(self, inputs, *args, **kwargs):
        if not self.built:
            self.build(inputs.shape)
        return self._traced_output_spec(inputs, *args, **kwargs)

    def get_config(self):
        names = (
            "intermediate_dim num_heads dropout layer_norm_epsilon normalize_first "
            "max_relative_position use_key_table use_value_table share_heads use_bias "
            "attention_dropout activation_dropout seed"
        )
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names.split()},
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            **quantized_dtype(self),
        }
