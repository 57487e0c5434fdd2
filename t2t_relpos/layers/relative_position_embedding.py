"""A table of vectors by clipped relative position, and its lookup."""

import keras
from keras import ops

from t2t_relpos.attention.relative_ids import relative_ids
from t2t_relpos.layers import checks


@keras.saving.register_keras_serializable(package="t2t_relpos")
class RelativePositionEmbedding(keras.layers.Layer):
    """Looks up a vector for every pair of a query's and a key's position.

    Row `clip(j - i, -K, K) + K` of a table of `2K + 1` rows belongs to query
    position `i` and key position `j`. `RelativeMultiHeadAttention` holds one
    such layer for keys and one for values and reads its `table`, without
    ever making the looked-up tensor; call the layer if that is wanted.

    Args:
        max_relative_position: K, an int of at least 0.
        depth: length H of a vector.
        num_heads: N for a table per head; `None` for one that all share.
        embeddings_initializer: of the table. Default `"glorot_uniform"`, as in
            t2t.
        embeddings_regularizer: of the table.
        embeddings_constraint: of the table.
        **kwargs: `name`, `dtype`, `trainable` of `keras.layers.Layer`.

    Call arguments:
        query: `[B, T, ...]`; only its length T is used.
        key: `[B, S, ...]`; default `query`.
        query_offset: key position of query 0, an int or a scalar tensor.
            Default `S - T`: the queries are the last positions.

    Returns:
        `[T, S, H]`, or `[N, T, S, H]` with a table per head.

    Raises:
        ValueError: an argument out of its range.

    Example:
    >>> import numpy as np
    >>> from keras import ops
    >>> from t2t_relpos.layers import RelativePositionEmbedding
    >>> embedding = RelativePositionEmbedding(max_relative_position=2, depth=3)
    >>> vectors = embedding(np.zeros((1, 7, 5)))
    >>> tuple(vectors.shape)
    (7, 7, 3)
    >>> bool(ops.all(vectors[0, 6] == embedding.table[4]))  # 6 apart, clipped to 2
    True

    Reference: Shaw et al. 2018, section 3.2;
    t2t `_generate_relative_positions_embeddings`.
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
        self.max_relative_position = checks.max_relative_position(max_relative_position)
        self.depth = checks.positive_int("depth", depth)
        self.num_heads = None if num_heads is None else checks.positive_int("num_heads", num_heads)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = keras.constraints.get(embeddings_constraint)

    def build(self, query_shape=None, key_shape=None):
        shape = (2 * self.max_relative_position + 1, self.depth)
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
        length_q = ops.shape(query)[1]
        length_k = length_q if key is None else ops.shape(key)[1]
        ids = relative_ids(length_q, length_k, self.max_relative_position, query_offset)
        table = ops.convert_to_tensor(self.table)
        # Not -2: PyTorch can export the lookup along the first axis only.
        return ops.take(table, ids, axis=len(table.shape) - 2)

    def get_config(self):
        return {
            **super().get_config(),
            "max_relative_position": self.max_relative_position,
            "depth": self.depth,
            "num_heads": self.num_heads,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "embeddings_regularizer": keras.regularizers.serialize(self.embeddings_regularizer),
            "embeddings_constraint": keras.constraints.serialize(self.embeddings_constraint),
        }
