"""Causal self-attention within two blocks."""

import keras
from keras import ops

from t2t_relpos import _checks
from t2t_relpos.attention.masks import combine_masks
from t2t_relpos.attention.variants import attend_two_blocks
from t2t_relpos.layers.attention_base import AttentionBase, add_table


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
        super().__init__(num_heads, key_dim, **kwargs)
        self.block_length = _checks.positive_int(block_length, "block_length")
        self.use_value_table = use_value_table
        self.share_heads = share_heads
        self.table_initializer = keras.initializers.get(table_initializer)

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        rows = 4 * self.block_length
        self.key_embedding = add_table(self, "key_embedding", rows, self.key_dim)
        self.value_embedding = None
        if self.use_value_table:
            self.value_embedding = add_table(self, "value_embedding", rows, self.value_dim)

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
        masks = {"query_mask": query_mask, "value_mask": value_mask, "key_mask": key_mask}
        self._check_call(query, value, key, **masks)
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
        return {
            **super().get_config(),
            "block_length": self.block_length,
            "use_value_table": self.use_value_table,
            "share_heads": self.share_heads,
            "table_initializer": keras.initializers.serialize(self.table_initializer),
        }
