"""Self-attention among the cells of a grid."""

import keras
from keras import ops

from t2t_relpos import _checks
from t2t_relpos.attention.masks import combine_masks, expand_to_batch, key_padding_mask
from t2t_relpos.attention.variants import attend_2d, two_sided_table
from t2t_relpos.layers.attention_base import AttentionBase, add_table


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
        super().__init__(num_heads, key_dim, **kwargs)
        self.max_relative_position = _checks.positive_int(
            max_relative_position, "max_relative_position"
        )
        self.share_heads = share_heads
        self.table_initializer = keras.initializers.get(table_initializer)

    def build(self, query_shape, value_shape, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        rows = 2 * self.max_relative_position - 1
        self.height_embedding = add_table(self, "height_embedding", rows, self.key_dim)
        self.width_embedding = add_table(self, "width_embedding", rows, self.key_dim)

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
        masks = {"query_mask": query_mask, "value_mask": value_mask, "key_mask": key_mask}
        self._check_call(query, value, key, attention_mask, **masks)
        batch, height, width, _ = ops.shape(query)

        def flat(x):
            return ops.reshape(x, (batch, height * width, *x.shape[3:]))

        def grid(x):
            return ops.reshape(x, (batch, self.num_heads, height, width, x.shape[-1]))

        query_mask, value_mask, key_mask = (
            None if mask is None else flat(expand_to_batch(mask, query))
            for mask in (query_mask, value_mask, key_mask)
        )
        mask = combine_masks(
            None if query_mask is None else query_mask[..., None],
            None if key_mask is None else key_padding_mask(key_mask),
            None if value_mask is None else key_padding_mask(value_mask),
            attention_mask,
        )
        tables = (self.height_embedding, self.width_embedding)
        outputs, weights = attend_2d(
            grid(self.project_query(flat(query))),
            grid(self.project_key(flat(key))),
            grid(self.project_value(flat(value))),
            *(two_sided_table(ops.convert_to_tensor(table)) for table in tables),
            mask=mask,
            dropout=lambda x: self._drop(x, training),
        )
        cells = ops.reshape(outputs, (batch, self.num_heads, height * width, self.value_dim))
        outputs = self.project_output(cells, flat(query))
        outputs = ops.reshape(outputs, (batch, height, width, *outputs.shape[2:]))
        return (outputs, weights) if return_attention_scores else outputs

    def get_config(self):
        return {
            **super().get_config(),
            "max_relative_position": self.max_relative_position,
            "share_heads": self.share_heads,
            "table_initializer": keras.initializers.serialize(self.table_initializer),
        }
