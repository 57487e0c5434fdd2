"""tensor2tensor's other relative attentions: limited distances, two axes, and two blocks."""

import keras

from t2t_relpos import _checks
from t2t_relpos.attention.masks import combine_masks, expand_to_batch
from t2t_relpos.attention.t2t_variants import (
    attend_2d,
    attend_two_blocks,
    left_sided_table,
    two_sided_table,
)
from t2t_relpos.backend import ops
from t2t_relpos.layers.attention_base import AttentionBase, pair_mask
from t2t_relpos.layers.layer_mixin import config_of
from t2t_relpos.layers.relative_multi_head_attention import RelativeMultiHeadAttention


@keras.saving.register_keras_serializable(package="t2t_relpos")
class RelativeMultiHeadAttentionV2(RelativeMultiHeadAttention):
    """Multi-head attention with relative positions up to a distance, and none beyond it.

    Distances from `-(K - 1)` to `K - 1` have learned vectors. Larger distances have none, whereas
    `RelativeMultiHeadAttention` clips them. With `masked`, keys after a query are masked, and there
    are vectors for the distances from `-(K - 1)` to 0.

    Args:
        num_heads: N, number of attention heads.
        key_dim: H, size of a head for queries and keys.
        max_relative_position: K, at least 1. Distances of K or more have no vectors.
        masked: whether keys after a query are always masked. Default: False.
        use_value_table: whether values have relative vectors too. Default: False.
        share_heads: True: all heads share the tables. False: each head has tables. Default: False,
            as in t2t.
        table_initializer: initializer of the tables. Default: None, a normal distribution of
            standard deviation `H ** -0.5`, as in t2t.
        **kwargs: `value_dim`, `dropout`, `use_bias`, `output_shape`, `attention_axes`,
            `sliding_window`, `flash_attention`, initializers, regularizers, constraints,
            `use_gate`, `seed` and `use_key_table` as in `RelativeMultiHeadAttention`; `name`,
            `dtype`, `trainable` of `keras.layers.Layer`.

    The call arguments and the outputs are those of `RelativeMultiHeadAttention`. With `masked`,
    `use_causal_mask` is always on.

    Raises:
        ValueError: if an argument is out of range or not supported.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.layers import RelativeMultiHeadAttentionV2
    >>> attention = RelativeMultiHeadAttentionV2(2, 4, max_relative_position=16, masked=True)
    >>> x = np.random.default_rng(0).normal(size=(3, 7, 8)).astype("float32")
    >>> tuple(attention(x, x).shape)
    (3, 7, 8)
    >>> tuple(attention.key_embedding.shape)
    (2, 16, 4)

    Reference: t2t `dot_product_self_attention_relative_v2` (masked) and
    `dot_product_unmasked_self_attention_relative_v2`.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        max_relative_position,
        *,
        masked=False,
        use_value_table=False,
        share_heads=False,
        table_initializer=None,
        **kwargs,
    ):
        super().__init__(
            num_heads,
            key_dim,
            max_relative_position=_checks.one_distance(max_relative_position, type(self).__name__),
            use_value_table=use_value_table,
            share_heads=share_heads,
            table_initializer=table_initializer,
            **kwargs,
        )
        self.masked = masked

    def _make_table(self, name, depth):
        num_distances = self.max_relative_position
        rows = num_distances if self.masked else 2 * num_distances - 1
        return self._add_table(name, rows, depth)

    def _is_causal(self, use_causal_mask):
        return use_causal_mask or self.masked

    def clipped_tables(self):
        widen = left_sided_table if self.masked else two_sided_table
        tables = (self.key_embedding, self.value_embedding)
        return [None if t is None else widen(ops.convert_to_tensor(t)) for t in tables]

    def get_config(self):
        return {**super().get_config(), "masked": self.masked}


@keras.saving.register_keras_serializable(package="t2t_relpos")
class RelativeMultiHeadAttention2D(AttentionBase):
    """Self-attention in images, with relative positions along rows and columns.

    The score of a query and a key has a learned term for the distance in rows, and one for the
    distance in columns. Distances of K or more have no term.

    Args:
        num_heads: N, number of attention heads.
        key_dim: H, size of a head for queries and keys.
        max_relative_position: K, in rows and in columns; at least 1.
        share_heads: True: all heads share the tables. False: each head has tables. Default: False,
            as in t2t.
        table_initializer: initializer of the tables. Default: None, a normal distribution of
            standard deviation `H ** -0.5`, as in t2t.
        **kwargs: `value_dim`, `dropout`, `use_bias`, `output_shape`, initializers, regularizers,
            constraints, `use_gate` and `seed` as in `RelativeMultiHeadAttention`; `name`, `dtype`,
            `trainable` of `keras.layers.Layer`.

    Call arguments:
        query: `[B, height, width, D]`.
        value: `[B, height, width, D]`, of the same grid.
        key: `[B, height, width, D]`. Default: `value`.
        query_mask: bool `[B, height, width]`, True = a cell. A masked query gets zeros before the
            output projection. Default: None.
        value_mask: bool `[B, height, width]`, True = attend. Default: None.
        key_mask: bool `[B, height, width]`, True = attend. Default: None.
        attention_mask: bool, `[P, P]`, `[B, P, P]` or `[B, N, P, P]` with P = height·width and
            cells in row-major order; True = attend. Default: None.
        return_attention_scores: whether to return (outputs, scores). Default: False.
        training: whether dropout is applied. Default: Keras's training mode.

    Attributes:
        height_embedding: table of distances in rows, `[N, 2K - 1, H]` or `[2K - 1, H]`.
        width_embedding: table of distances in columns, of the same shape.

    Returns:
        outputs `[B, height, width, D]`; if requested, (outputs, scores `[B, N, P, P]`), the weights
        after softmax and before dropout.

    Raises:
        ValueError: if an argument is out of range, or the grids have different sizes.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.layers import RelativeMultiHeadAttention2D
    >>> attention = RelativeMultiHeadAttention2D(2, 4, max_relative_position=3)
    >>> image = np.random.default_rng(0).normal(size=(3, 5, 7, 8)).astype("float32")
    >>> tuple(attention(image, image).shape)
    (3, 5, 7, 8)

    Reference: t2t `dot_product_unmasked_self_attention_relative_2d`.
    """

    _INPUTS = {
        "query": "B height width D",
        "value": "B height width Dv",
        "key": "B height width Dk",
    }
    _SHAPE_ADVICE = "All inputs have one height and width: this is self-attention."

    def __init__(
        self,
        num_heads,
        key_dim,
        max_relative_position,
        *,
        share_heads=False,
        table_initializer=None,
        **kwargs,
    ):
        super().__init__(
            num_heads,
            key_dim,
            share_heads=share_heads,
            table_initializer=table_initializer,
            **kwargs,
        )
        self.max_relative_position = _checks.one_distance(
            max_relative_position, type(self).__name__
        )

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        rows = 2 * self.max_relative_position - 1
        self.height_embedding = self._add_table("height_embedding", rows, self.key_dim)
        self.width_embedding = self._add_table("width_embedding", rows, self.key_dim)

    def _check_inputs(self, *shapes, **options):
        sizes = super()._check_inputs(*shapes, **options)
        height, width = sizes.get("height"), sizes.get("width")
        cells = height * width if None not in (height, width) else None
        return sizes | {"T": cells, "S": cells}

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
    ):
        key = value if key is None else key
        padding_masks = query_mask, value_mask, key_mask
        self._check_call((query, value, key), padding_masks, attention_mask)
        batch, height, width, _ = ops.shape(query)

        def flat(x):
            return ops.reshape(x, (batch, height * width, *x.shape[3:]))

        def grid(x):
            return ops.reshape(x, (batch, self.num_heads, height, width, x.shape[-1]))

        query_mask, *key_masks = (
            None if mask is None else flat(expand_to_batch(mask, query)) for mask in padding_masks
        )
        tables = (self.height_embedding, self.width_embedding)
        outputs, weights = attend_2d(
            grid(self.project_query(flat(query))),
            grid(self.project_key(flat(key))),
            grid(self.project_value(flat(value))),
            *(two_sided_table(ops.convert_to_tensor(table)) for table in tables),
            mask=pair_mask(query_mask, key_masks, attention_mask),
            dropout=lambda x: self._drop(x, training),
        )
        cells = ops.reshape(outputs, (batch, self.num_heads, height * width, self.value_dim))
        outputs = self.project_output(cells, flat(query))
        outputs = ops.reshape(outputs, (batch, height, width, *outputs.shape[2:]))
        return (outputs, weights) if return_attention_scores else outputs

    def get_config(self):
        return {**super().get_config(), "max_relative_position": self.max_relative_position}


@keras.saving.register_keras_serializable(package="t2t_relpos")
class LocalRelativeMultiHeadAttention(AttentionBase):
    """Causal self-attention to the block of the query and the previous block.

    The sequence is split into blocks of `block_length`. A query attends to keys at or before its
    position, in its block and in the previous one. Every distance has a learned vector. Time and
    memory are linear in length.

    As in tensor2tensor, the tables have `4 * block_length` rows, and half of them are unused. The
    value table has no effect on queries of the first block, nor on sequences shorter than two
    blocks.

    Args:
        num_heads: N, number of attention heads.
        key_dim: H, size of a head for queries and keys.
        block_length: length of a block. Default: 128.
        use_value_table: whether values have relative vectors too. Default: False.
        share_heads: True: all heads share the tables. False: each head has tables. Default: False,
            as in t2t.
        table_initializer: initializer of the tables. Default: None, a normal distribution of
            standard deviation `H ** -0.5`, as in t2t.
        **kwargs: `value_dim`, `dropout`, `use_bias`, `output_shape`, initializers, regularizers,
            constraints, `use_gate` and `seed` as in `RelativeMultiHeadAttention`; `name`, `dtype`,
            `trainable` of `keras.layers.Layer`.

    Call arguments:
        query: `[B, T, D]`.
        value: `[B, T, D]`, of the same length.
        key: `[B, T, D]`. Default: `value`.
        query_mask: bool `[B, T]`, True = a token. A masked query gets zeros before the output
            projection. Default: the mask of a mask_zero embedding.
        value_mask: bool `[B, T]`, True = attend. Default: the mask of a mask_zero embedding.
        key_mask: bool `[B, T]`, True = attend. Default: the mask of a mask_zero embedding.
        training: whether dropout is applied. Default: Keras's training mode.

    Returns:
        outputs `[B, T, D]`.

    Raises:
        ValueError: if an argument is out of range, lengths differ, or a mask has the wrong shape.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.layers import LocalRelativeMultiHeadAttention
    >>> attention = LocalRelativeMultiHeadAttention(2, 4, block_length=3)
    >>> x = np.random.default_rng(0).normal(size=(3, 11, 8)).astype("float32")
    >>> tuple(attention(x, x).shape)
    (3, 11, 8)

    Reference: t2t `masked_relative_local_attention_1d`.
    """

    _INPUTS = {"query": "B T D", "value": "B T Dv", "key": "B T Dk"}
    _SHAPE_ADVICE = "All inputs have one length: this is self-attention."

    def __init__(
        self,
        num_heads,
        key_dim,
        block_length=128,
        *,
        use_value_table=False,
        share_heads=False,
        table_initializer=None,
        **kwargs,
    ):
        super().__init__(
            num_heads,
            key_dim,
            share_heads=share_heads,
            table_initializer=table_initializer,
            **kwargs,
        )
        self.block_length = _checks.positive_int(block_length, "block_length")
        self.use_value_table = use_value_table

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        rows = 4 * self.block_length
        self.key_embedding = self._add_table("key_embedding", rows, self.key_dim)
        self.value_embedding = None
        if self.use_value_table:
            self.value_embedding = self._add_table("value_embedding", rows, self.value_dim)

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        training=None,
    ):
        key = value if key is None else key
        self._check_call((query, value, key), (query_mask, value_mask, key_mask))
        tables = (self.key_embedding, self.value_embedding)
        outputs = attend_two_blocks(
            self.project_query(query),
            self.project_key(key),
            self.project_value(value),
            *(None if table is None else ops.convert_to_tensor(table) for table in tables),
            block_length=self.block_length,
            key_mask=combine_masks(key_mask, value_mask),
            dropout=lambda x: self._drop(x, training),
        )
        if query_mask is not None:
            is_token = ops.expand_dims(ops.cast(query_mask, "bool"), (1, 3))
            outputs = ops.where(is_token, outputs, ops.zeros_like(outputs))
        return self.project_output(outputs, query)

    def get_config(self):
        return {**super().get_config(), **config_of(self, "block_length use_value_table")}
