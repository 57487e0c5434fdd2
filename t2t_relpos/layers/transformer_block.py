"""What the blocks of the Transformer's encoder and decoder have in common."""

import functools

import keras
from keras import ops

from t2t_relpos import _checks
from t2t_relpos.attention.masks import combine_masks
from t2t_relpos.backend.keras_private import attached_mask
from t2t_relpos.layers.feed_forward import FeedForward
from t2t_relpos.layers.layer_mixin import LayerMixin, config_of, quantized_dtype
from t2t_relpos.layers.relative_multi_head_attention import RelativeMultiHeadAttention
from t2t_relpos.layers.residual import Residual
from t2t_relpos.layers.t2t_variants import RelativeMultiHeadAttentionV2

# The order of their seeds.
_SUBLAYERS = (
    "self_attention",
    "self_attention_residual",
    "feed_forward",
    "feed_forward_residual",
    "cross_attention",
    "cross_attention_residual",
)
# Far larger than the usual differences between the seeds of blocks.
_SEED_STEP = 1_000_003


class TransformerBlock(LayerMixin, keras.layers.Layer):
    """Base class of a block: self-attention and a feed-forward network, each with a residual.

    The arguments are those of `TransformerEncoder`, which documents them.

    Attributes:
        cross_attention: the attention to an encoder, or None. Only a `TransformerDecoder` has it.
        cross_attention_residual: its `Residual`, or None.
    """

    # Whether the self-attention is a masked `RelativeMultiHeadAttentionV2`.
    relative_v2 = False

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
        key_dim=None,
        value_dim=None,
        sliding_window=None,
        flash_attention=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.intermediate_dim = _checks.positive_int(intermediate_dim, "intermediate_dim")
        self.num_heads = _checks.positive_int(num_heads, "num_heads")
        self.dropout = _checks.rate(dropout, "dropout")
        self.activation = keras.activations.get(activation)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.normalize_first = normalize_first
        if use_key_table or use_value_table or max_relative_position is not None:
            max_relative_position = _checks.max_relative_position(max_relative_position)
        self.max_relative_position = max_relative_position
        self.use_key_table = use_key_table
        self.use_value_table = use_value_table
        self.share_heads = share_heads
        self.use_bias = use_bias
        self.attention_dropout = (
            self.dropout
            if attention_dropout is None
            else _checks.rate(attention_dropout, "attention_dropout")
        )
        self.activation_dropout = _checks.rate(activation_dropout, "activation_dropout")
        self.key_dim = None if key_dim is None else _checks.positive_int(key_dim, "key_dim")
        self.value_dim = None if value_dim is None else _checks.positive_int(value_dim, "value_dim")
        if sliding_window is not None:
            sliding_window = _checks.positive_int(sliding_window, "sliding_window")
        self.sliding_window = sliding_window
        self.flash_attention = flash_attention
        self.seed = seed
        self.supports_masking = True
        self.cross_attention = self.cross_attention_residual = None

    def _build_sublayers(self, name, shape):
        """Creates the self-attention, the feed-forward network and their residuals."""
        self._check_shape(name, shape)
        self.self_attention = self._make_attention("self_attention", shape[-1])
        self.self_attention.build(shape, shape)
        self.self_attention_residual = self._make_residual("self_attention_residual", shape)
        self.feed_forward = FeedForward(
            self.intermediate_dim,
            self.activation_dropout,
            activation=self.activation,
            kernel_initializer=self.kernel_initializer,
            bias_initializer=self.bias_initializer,
            **self._common_arguments("feed_forward"),
        )
        self.feed_forward.build(shape)
        self.feed_forward_residual = self._make_residual("feed_forward_residual", shape)

    def _check_shape(self, name, shape):
        """Raises ValueError unless inputs are `[B, S, D]`, and N divides D if it has to."""
        sizes = {}
        if self.built:
            sizes["D"] = self.self_attention.query_dense.input_spec.axes[-1]
        advice = _checks.EMBED_IDS if len(shape) == 2 else ""
        _checks.check_shape(shape, name, "B T D", sizes, advice=advice)
        if None in (self.key_dim, self.value_dim) and shape[-1] % self.num_heads:
            raise ValueError(
                "Expected `num_heads` to divide the width of the inputs, or both `key_dim` and "
                f"`value_dim`. Received: num_heads={self.num_heads}, width {shape[-1]}."
            )

    def _make_attention(self, name, width, *, relative=True):
        """Returns an attention layer with this name, for inputs of this width."""
        attention = RelativeMultiHeadAttention
        if self.relative_v2 and name == "self_attention":
            attention = functools.partial(RelativeMultiHeadAttentionV2, masked=True)
        return attention(
            num_heads=self.num_heads,
            key_dim=self.key_dim or width // self.num_heads,
            value_dim=self.value_dim or width // self.num_heads,
            dropout=self.attention_dropout,
            use_bias=self.use_bias,
            kernel_initializer=self.kernel_initializer,
            bias_initializer=self.bias_initializer,
            max_relative_position=self.max_relative_position if relative else None,
            use_key_table=relative and self.use_key_table,
            use_value_table=relative and self.use_value_table,
            share_heads=self.share_heads,
            sliding_window=self.sliding_window if name == "self_attention" else None,
            flash_attention=self.flash_attention,
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
            "seed": _sublayer_seed(self.seed, _SUBLAYERS.index(name)),
            "dtype": self.dtype_policy,
            "trainable": self.trainable,
            "name": name,
        }

    def _feed(self, x, *, training=None):
        """Returns the outputs of the feed-forward network with its residual."""
        residual = self.feed_forward_residual
        outputs = self.feed_forward(residual.before(x), training=training)
        return residual.after(x, outputs, training=training)

    def get_config(self):
        names = (
            "intermediate_dim num_heads dropout layer_norm_epsilon normalize_first "
            "max_relative_position use_key_table use_value_table share_heads use_bias "
            "attention_dropout activation_dropout key_dim value_dim sliding_window flash_attention "
            "seed kernel_initializer bias_initializer"
        )
        return {
            **super().get_config(),
            **config_of(self, names),
            "activation": keras.activations.serialize(self.activation),
            **quantized_dtype(self),
        }


def _sublayer_seed(seed, number):
    """Returns the seed of a sublayer: different for every number, or None without a seed.

    With the same seed, dropouts of the same shape would drop the same units.
    """
    if seed is None or number == 0:
        return seed
    return (seed + number * _SEED_STEP) % 2**31


def block_mask(query, key, masks, *, prefix="", key_length=None, packed=False):
    """Returns the conjunction of a padding mask and an attention mask, or None without masks.

    Args:
        query: `[B, T, D]`.
        key: `[B, S, D]`, or None with a cache. Without a cache, the padding mask defaults to the
            mask that Keras attached to it.
        masks: (padding mask `[B, S]`, attention mask `[B, T, S]` or `[T, S]`), each a tensor or
            None.
        prefix: prefix of the argument names in error messages.
        key_length: S, the length of the cache that has the keys. Default: None, no cache.
        packed: whether the sequences are packed. B, T and S are then unknown.

    Raises:
        ValueError: if a mask has an unsupported dtype or shape.
    """
    padding_mask, attention_mask = masks
    # The mask attached to the inputs does not cover all positions of a cache.
    if padding_mask is None and key_length is None and key is not None:
        padding_mask = attached_mask(key)
    batch, length_q = (None, None) if packed else query.shape[:2]
    if key_length is None and key is not None:
        key_length = key.shape[1]
    length_k = None if packed else key_length
    sizes = {"B": batch, "T": length_q, "S": length_k}
    _checks.check(padding_mask, f"{prefix}padding_mask", "B S", "mask", sizes, broadcast="B")
    _checks.check(
        attention_mask,
        f"{prefix}attention_mask",
        "B T S | T S",
        "mask",
        sizes,
        broadcast="B T S",
    )
    if padding_mask is not None:
        padding_mask = ops.expand_dims(padding_mask, 1)
    return combine_masks(padding_mask, attention_mask)


def call_attention(attention, query, value, padding_mask=None, packings=(None, None), **arguments):
    """Returns the results of an attention sublayer, whose inputs may be packed.

    Args:
        attention: a `RelativeMultiHeadAttention`.
        query: `[B, T, D]`, or `[1, P, D]` if packed.
        value: `[B, S, D]`, or `[1, P, D]` if packed.
        padding_mask: the explicit padding mask `[B, S]`, or None. It replaces the mask that Keras
            attached to `value`. Default: None.
        packings: (`Packing` of `query`, `Packing` of `value`), each may be None.
        **arguments: further arguments of a call of `attention`.
    """
    if any(packing is not None for packing in packings):
        return attention.attend_packed(query, value, *packings, **arguments)
    if padding_mask is not None and attached_mask(value) is not None:
        # Without these arguments, Keras would pass the attached masks too.
        names = ("query_mask", "value_mask") if query is value else ("value_mask",)
        arguments |= dict.fromkeys(names, padding_mask)
    return attention(query, value, **arguments)
