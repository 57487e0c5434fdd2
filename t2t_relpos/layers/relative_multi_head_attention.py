"""Multi-head attention with relative position representations."""

import keras
from keras import ops

from t2t_relpos import _checks
from t2t_relpos.attention.dropout import AttentionDropout
from t2t_relpos.attention.masks import combine_masks
from t2t_relpos.layers import call_checks
from t2t_relpos.layers.explicit_positions import PairArguments, explicit_positions, mask_and_ids
from t2t_relpos.layers.incremental_attention import IncrementalAttention
from t2t_relpos.layers.keras_attention import check_attention_axes, from_keras_attention
from t2t_relpos.layers.multi_head_base import MultiHeadBase
from t2t_relpos.layers.relative_tables import RelativeTables


@keras.saving.register_keras_serializable(package="t2t_relpos")
class RelativeMultiHeadAttention(RelativeTables, IncrementalAttention, MultiHeadBase):
    """`keras.layers.MultiHeadAttention` with relative positions.

    Every pair of a query at position `i` and a key at position `j` has two learned vectors, chosen
    by `clip(j - i, -K, K)`. One is added to the key in the score, the other to the value in the
    output. No other position encoding is needed.

    Args:
        num_heads: N, number of attention heads.
        key_dim: H, size of a head for queries and keys.
        value_dim: size of a head for values. Default: `key_dim`.
        dropout: rate of the dropout of attention weights. Default: 0.0.
        use_bias: whether the projections have biases. Default: True.
        output_shape: size of the output's last axis, or a tuple of the sizes of several axes that
            replace it. Default: the size of the last axis of `query`.
        attention_axes: None, 1 or (1,), the sequence axis. Others raise an error, because relative
            positions have one axis. Default: None.
        sliding_window: a query attends to keys at distances less than this. Without explicit
            positions or returned scores, attention then costs O(T·window) instead of O(T·S).
            Default: None, no limit.
        flash_attention: True: memory is linear in length at any length, because the gradient
            computes the weights again. Explicit positions and returned scores are then not
            supported. There is no fused kernel. None or False: with a relative table, memory is
            linear in length above 1,024 positions; on TensorFlow on a CPU without XLA above 4,096
            positions in training, 256 in inference, and 128 in causal inference. Without tables,
            and with explicit positions or returned scores, memory is quadratic. Default: None.
        kernel_initializer: initializer of the projection kernels. Default: `"glorot_uniform"`.
        bias_initializer: initializer of the projection biases. Default: `"zeros"`.
        kernel_regularizer: regularizer of the projection kernels. Default: None.
        bias_regularizer: regularizer of the projection biases. Default: None.
        activity_regularizer: regularizer of the outputs of the projections. Default: None.
        kernel_constraint: constraint of the projection kernels. Default: None.
        bias_constraint: constraint of the projection biases. Default: None.
        use_gate: whether the outputs of the heads are multiplied by a sigmoid of a projection of
            the query. Default: False.
        seed: seed of the dropout. Default: None, a random seed.
        max_relative_position: clipping distance K, an int from 0 to 1,000,000. Larger distances use
            the table rows of K. Required unless both tables are off. Default: None.
        use_key_table: whether relative positions are added to keys (a^K). Default: True.
        use_value_table: whether relative positions are added to values (a^V). Default: True.
        share_heads: True: all heads share a table (t2t, the paper's big model). False: each head
            has a table (the paper's base model). Default: True.
        table_initializer: initializer of the tables. Default: `"glorot_uniform"`, as in t2t.
        **kwargs: `name`, `dtype`, `trainable` of `keras.layers.Layer`.

    Call arguments:
        query: `[B, T, D]`.
        value: `[B, S, D]`.
        key: `[B, S, D]`. Default: `value`.
        query_mask: bool `[B, T]`, True = a token. A masked query gets zeros before the output
            projection. Default: the mask of a mask_zero embedding.
        value_mask: bool `[B, S]`, True = attend. Default: the mask of a mask_zero embedding.
        key_mask: bool `[B, S]`, True = attend. A key is masked if it is False in `key_mask` or in
            `value_mask`. Default: the mask of a mask_zero embedding.
        attention_mask: bool, `[B, T, S]`, `[T, S]` or `[B, N, T, S]`; True = attend. Default: None.
        return_attention_scores: whether to return (outputs, scores). Default: False.
        training: whether dropout is applied. Default: Keras's training mode.
        use_causal_mask: whether keys after a query are masked. Default: False.
        query_offset: key position of query 0, an int or a scalar tensor. Default: `S - T`, so that
            the queries are the last positions, for distances and for causality.
            keras.layers.MultiHeadAttention uses 0 for causality, which differs if T != S.
        query_positions: int `[T]` or `[B, T]`, a position for every query. Replaces `query_offset`.
            With explicit positions, causality and `sliding_window` compare positions instead of
            indices. Default: `query_offset + (0, 1, …)`.
        key_positions: int `[S]` or `[B, S]`, a position for every key. Default: `(0, 1, …)`.
        query_packing: a `Packing` `[B, T]`. `query` and the outputs are then `[1, P, D]`, the
            tokens of all sequences. Padding is masked. Default: None.
        value_packing: a `Packing` `[B, S]`. `value` and `key` are then `[1, P, D]`. Default: None.

    Attributes:
        query_dense: projection of queries, a `keras.layers.EinsumDense`.
        key_dense: projection of keys.
        value_dense: projection of values.
        output_dense: projection of the outputs of the heads.
        key_embedding: a^K, a `RelativePositionEmbedding`, or None if off. Its `table` is
            `[2K + 1, H]`, or `[N, 2K + 1, H]` if `share_heads` is False. It exists after `build`.
        value_embedding: a^V, a `RelativePositionEmbedding`, or None if off.

    Returns:
        outputs `[B, T, D]`; if requested, (outputs, scores `[B, N, T, S]`), the weights after
        softmax and before dropout.

    Raises:
        ValueError: if an argument is out of range or not supported, or a mask, a position or an
            offset has the wrong shape or dtype.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.layers import RelativeMultiHeadAttention
    >>> attention = RelativeMultiHeadAttention(num_heads=2, key_dim=4, max_relative_position=16)
    >>> x = np.random.default_rng(0).normal(size=(3, 7, 8)).astype("float32")
    >>> tuple(attention(x, x, use_causal_mask=True).shape)
    (3, 7, 8)

    Reference: Shaw et al. 2018, section 3; t2t
    `multihead_attention(attention_type="dot_product_relative")`.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        dropout=0.0,
        use_bias=True,
        output_shape=None,
        attention_axes=None,
        sliding_window=None,
        flash_attention=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        activity_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        use_gate=False,
        seed=None,
        *,
        max_relative_position=None,
        use_key_table=True,
        use_value_table=True,
        share_heads=True,
        table_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(
            num_heads,
            key_dim,
            value_dim=value_dim,
            dropout=dropout,
            use_bias=use_bias,
            output_shape=output_shape,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            activity_regularizer=activity_regularizer,
            kernel_constraint=kernel_constraint,
            bias_constraint=bias_constraint,
            use_gate=use_gate,
            seed=seed,
            **kwargs,
        )
        check_attention_axes(attention_axes)
        if sliding_window is not None:
            sliding_window = _checks.positive_int("sliding_window", sliding_window)
        if use_key_table or use_value_table or max_relative_position is not None:
            max_relative_position = _checks.max_relative_position(max_relative_position)
        self.max_relative_position = max_relative_position
        self.attention_axes = attention_axes
        self.flash_attention = flash_attention
        self.sliding_window = sliding_window
        self.use_key_table = use_key_table
        self.use_value_table = use_value_table
        self.share_heads = share_heads
        self.table_initializer = keras.initializers.get(table_initializer)

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self._build_tables()

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
        query_offset=None,
        query_positions=None,
        key_positions=None,
        query_packing=None,
        value_packing=None,
    ):
        key = value if key is None else key
        if query_packing is None and value_packing is None:
            masks = {"query_mask": query_mask, "value_mask": value_mask, "key_mask": key_mask}
            call_checks.sequences_and_masks(
                query, value, key, attention_mask, masks, self.num_heads
            )
        projected = (
            self.project_query(query, query_packing),
            self.project_key(key, value_packing),
            self.project_value(value, value_packing),
        )
        lengths = ops.shape(projected[0])[2], ops.shape(projected[1])[2]
        positions = explicit_positions(
            (query_positions, key_positions), query_offset, lengths, projected[0].shape[0]
        )
        causal = self._is_causal(use_causal_mask)
        pairs = PairArguments(causal, attention_mask, positions, query_offset)
        key_mask = _key_mask((key_mask, value_mask), (query_packing, value_packing), pairs)
        outputs, weights = self._attend_to_pairs(
            projected,
            pairs,
            {"query_mask": query_mask, "key_mask": key_mask},
            training=training,
            return_weights=return_attention_scores,
        )
        outputs = self.project_output(outputs, query, query_packing)
        return (outputs, weights) if return_attention_scores else outputs

    def _attend_to_pairs(self, projected, pairs, masks, *, training, return_weights):
        """Returns (outputs of all heads `[B, N, T, Hv]`, weights `[B, N, T, S]` or None).

        Args:
            projected: queries, keys and values of all heads.
            pairs: a `PairArguments`.
            masks: dict of `query_mask` `[B, T]` and `key_mask` `[B, S]`, each a tensor or None.
            training: whether dropout is applied.
            return_weights: whether the weights are returned.
        """
        query, key, _ = projected
        lengths = ops.shape(query)[2], ops.shape(key)[2]
        return self.attend(
            *projected,
            **masks,
            dropout=self._attention_dropout(training),
            **mask_and_ids(self, lengths, pairs),
            return_weights=return_weights,
            rematerialize=self._rematerialize(training),
        )

    def _is_causal(self, use_causal_mask):
        """Returns whether keys after a query are masked. Subclasses may override it."""
        return use_causal_mask

    def _rematerialize(self, training):
        """Returns the argument `rematerialize` of `attend`. False allows saving weights."""
        if self.flash_attention:
            return True
        return False if training else None

    def _attention_dropout(self, training):
        if not training or not self.dropout:
            return None
        return AttentionDropout(self.dropout, self.dropout_layer.seed_generator)

    @classmethod
    def from_multi_head_attention(cls, layer, max_relative_position, **kwargs):
        """Returns a layer with the weights of a `keras.layers.MultiHeadAttention` and zero tables.

        The outputs are equal, except for causal masks if T != S (see `query_offset`) and fully
        masked queries. Keras's layer also removes the padding mask of its inputs. This layer does
        not.

        Args:
            layer: a built `keras.layers.MultiHeadAttention` with one attention axis.
            max_relative_position: clipping distance K.
            **kwargs: further arguments of the constructor, which replace those of `layer`, such as
                `share_heads` or `flash_attention`.

        Returns:
            A built layer.

        Raises:
            ValueError: if `layer` is not a `keras.layers.MultiHeadAttention`, is not built, has
                several attention axes, or has LoRA or quantized weights.

        Example:
        >>> import keras
        >>> import numpy as np
        >>> from t2t_relpos.layers import RelativeMultiHeadAttention
        >>> x = np.ones((3, 7, 8), "float32")
        >>> trained = keras.layers.MultiHeadAttention(num_heads=2, key_dim=4)
        >>> outputs = trained(x, x)
        >>> layer = RelativeMultiHeadAttention.from_multi_head_attention(trained, 16)
        >>> bool(np.allclose(layer(x, x), outputs, atol=1e-5))
        True
        """
        extra = {"max_relative_position": max_relative_position} | kwargs
        return from_keras_attention(cls, layer, extra)

    def get_config(self):
        return {
            **super().get_config(),
            "max_relative_position": self.max_relative_position,
            "attention_axes": self.attention_axes,
            "sliding_window": self.sliding_window,
            "flash_attention": self.flash_attention,
            "use_key_table": self.use_key_table,
            "use_value_table": self.use_value_table,
            "share_heads": self.share_heads,
            "table_initializer": keras.initializers.serialize(self.table_initializer),
        }


def _key_mask(masks, packings, pairs):
    """Returns the mask of the keys, bool `[B, S]`, or None without one.

    Args:
        masks: (key mask `[B, S]`, value mask `[B, S]`), each a tensor or None.
        packings: (`Packing` of the queries, `Packing` of the keys), each may be None.
        pairs: a `PairArguments`.
    """
    mask = combine_masks(*masks)
    query_packing, value_packing = packings
    if value_packing is None:
        return mask
    if query_packing is value_packing and pairs.masks_trailing_padding:
        return mask
    return combine_masks(mask, value_packing.mask)
