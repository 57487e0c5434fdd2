"""Multi-head attention with relative positions up to a distance, and none beyond it."""

import keras
from keras import ops

from t2t_relpos import _checks
from t2t_relpos.attention.variants import left_sided_table, two_sided_table
from t2t_relpos.layers.attention_base import add_table
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
        _checks.positive_int(max_relative_position, "max_relative_position")
        super().__init__(
            num_heads,
            key_dim,
            max_relative_position=max_relative_position,
            use_value_table=use_value_table,
            share_heads=share_heads,
            table_initializer=table_initializer,
            **kwargs,
        )
        self.masked = masked

    def _make_table(self, name, depth):
        num_distances = self.max_relative_position
        rows = num_distances if self.masked else 2 * num_distances - 1
        return add_table(self, name, rows, depth)

    def _is_causal(self, use_causal_mask):
        return use_causal_mask or self.masked

    def clipped_tables(self):
        widen = left_sided_table if self.masked else two_sided_table
        tables = (self.key_embedding, self.value_embedding)
        return [None if t is None else widen(ops.convert_to_tensor(t)) for t in tables]

    def get_config(self):
        return {**super().get_config(), "masked": self.masked}
