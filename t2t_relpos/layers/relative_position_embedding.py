"""A table of vectors by clipped relative position, and its lookup."""

import keras
from keras import ops

from t2t_relpos import _checks
from t2t_relpos.attention.band import Distances
from t2t_relpos.attention.relative_ids import relative_ids
from t2t_relpos.layers.layer_mixin import LayerMixin, config_of


@keras.saving.register_keras_serializable(package="t2t_relpos")
class RelativePositionEmbedding(LayerMixin, keras.layers.Layer):
    """A table of vectors by clipped relative position.

    Row `clip(j - i, -left, right) + left` belongs to query position `i` and key position `j`. The
    attention layers read the `table` and do not build the tensor of looked-up vectors. A call of
    this layer builds it.

    Args:
        max_relative_position: clipping distance K, an int from 0 to 1,000,000, or a pair (left,
            right) of them. The table has left + right + 1 rows.
        depth: H, size of a vector.
        num_heads: N for a table per head. Default: None, one table for all heads.
        embeddings_initializer: initializer of the table. Default: `"glorot_uniform"`, as in t2t.
        embeddings_regularizer: regularizer of the table. Default: None.
        embeddings_constraint: constraint of the table. Default: None.
        **kwargs: `name`, `dtype`, `trainable` of `keras.layers.Layer`.

    Call arguments:
        query: `[B, T, ...]`. Only its length T is used.
        key: `[B, S, ...]`. Only its length S is used. Default: `query`.
        query_offset: key position of query 0, an int or a scalar tensor. Default: `S - T`, so that
            the queries are the last positions.

    Returns:
        `[T, S, H]`, or `[N, T, S, H]` with a table per head.

    Raises:
        ValueError: if `max_relative_position`, `depth` or `num_heads` is out of range.

    Example:
    >>> import numpy as np
    >>> from keras import ops
    >>> from t2t_relpos.layers import RelativePositionEmbedding
    >>> embedding = RelativePositionEmbedding(max_relative_position=2, depth=3)
    >>> vectors = embedding(np.zeros((1, 7, 5)))
    >>> tuple(vectors.shape)
    (7, 7, 3)
    >>> bool(ops.all(vectors[0, 6] == embedding.table[4]))  # distance 6, clipped to 2
    True

    Reference: Shaw et al. 2018, section 3.2; t2t `_generate_relative_positions_embeddings`.
    """

    def __init__(
        self,
        max_relative_position,
        depth,
        num_heads=None,
        embeddings_initializer="glorot_uniform",
        embeddings_regularizer=None,
        embeddings_constraint=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.max_relative_position = _checks.max_relative_position(max_relative_position)
        self.depth = _checks.positive_int(depth, "depth")
        self.num_heads = None if num_heads is None else _checks.positive_int(num_heads, "num_heads")
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = keras.constraints.get(embeddings_constraint)

    def build(self, query_shape=None, key_shape=None):
        shape = (Distances.of(self.max_relative_position).num_ids, self.depth)
        if self.num_heads is not None:
            shape = (self.num_heads, *shape)
        self.table = self.add_weight(
            name="table",
            shape=shape,
            initializer=self.embeddings_initializer,
            regularizer=self.embeddings_regularizer,
            constraint=self.embeddings_constraint,
        )

    def call(self, query, key=None, query_offset=None):
        _check_ranks(query.shape, query.shape if key is None else key.shape)
        length_q = ops.shape(query)[1]
        length_k = length_q if key is None else ops.shape(key)[1]
        ids = relative_ids(length_q, length_k, self.max_relative_position, query_offset)
        table = ops.convert_to_tensor(self.table)
        # Not -2: only for axis 0 does Keras use the lookup that PyTorch can export.
        return ops.take(table, ids, axis=len(table.shape) - 2)

    def compute_output_shape(self, query_shape, key_shape=None):
        key_shape = query_shape if key_shape is None else key_shape
        _check_ranks(query_shape, key_shape)
        heads = () if self.num_heads is None else (self.num_heads,)
        return (*heads, query_shape[1], key_shape[1], self.depth)

    def get_config(self):
        names = (
            "max_relative_position depth num_heads embeddings_initializer embeddings_regularizer "
            "embeddings_constraint"
        )
        return {**super().get_config(), **config_of(self, names)}


def _check_ranks(query_shape, key_shape):
    """Raises ValueError unless both shapes have a length."""
    for name, shape in (("query", query_shape), ("key", key_shape)):
        if len(shape) < 2:
            raise ValueError(
                f"Expected `{name}` of shape [B, length, ...]. Received: shape {tuple(shape)}. "
                "Only its length is used."
            )
