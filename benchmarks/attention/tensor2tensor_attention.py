"""Multi-head attention that runs tensor2tensor's algorithm."""

import keras
from keras import ops

from t2t_relpos.attention import causal_mask, dot_product_attention_relative


class Tensor2TensorAttention(keras.layers.Layer):
    """Multi-head attention with tensor2tensor's algorithm between the projections.

    Args:
        num_heads: N.
        key_dim: H.
        max_relative_position: K.
        dropout: dropout rate of the attention weights.
    """

    def __init__(self, num_heads, key_dim, max_relative_position, dropout):
        super().__init__()
        self.num_heads, self.key_dim = num_heads, key_dim
        self.max_relative_position, self.dropout = max_relative_position, dropout

    def build(self, query_shape, value_shape):
        heads, width = (self.num_heads, None, self.key_dim), query_shape[-1]
        self.projections = [
            keras.layers.EinsumDense("btd,dnh->bnth", heads, bias_axes="nh") for _ in range(3)
        ]
        for projection in self.projections:
            projection.build(query_shape)
        self.output_dense = keras.layers.EinsumDense("bnth,nhd->btd", (None, width), bias_axes="d")
        self.output_dense.build((None, *heads))
        table_shape = (2 * self.max_relative_position + 1, self.key_dim)
        self.tables = [self.add_weight(shape=table_shape) for _ in range(2)]

    def call(self, query, value, attention_mask=None, use_causal_mask=False, training=False):
        q, k, v = (dense(x) for dense, x in zip(self.projections, (query, value, value)))
        allowed = attention_mask
        if use_causal_mask:
            causal = causal_mask(query.shape[1], value.shape[1])
            allowed = causal if allowed is None else ops.logical_and(causal, allowed)
        bias = None
        if allowed is not None:
            bias = ops.where(allowed if len(allowed.shape) == 2 else allowed[:, None], 0.0, -1e9)
        tables = [ops.convert_to_tensor(table) for table in self.tables]
        rate = self.dropout if training else 0.0
        outputs = dot_product_attention_relative(
            q * self.key_dim**-0.5, k, v, bias, *tables, self.max_relative_position, rate
        )
        return self.output_dense(outputs)
