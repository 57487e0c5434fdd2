"""Three models that differ only in their attention layers."""

import keras
from keras import ops

from examples.python_trees import data, graphs
from t2t_relpos.layers import FeedForward, RelationMultiHeadAttention, RelativeMultiHeadAttention

NUM_LABELS = (graphs.NUM_TREE_LABELS, graphs.NUM_NAME_LABELS)
# Attention without positions and edges; with relative positions in source order, whose tables have
# as many rows as there are edge labels; with edge labels and no positions.
ATTENTION = {
    "content": lambda *sizes: RelativeMultiHeadAttention(
        *sizes, use_key_table=False, use_value_table=False
    ),
    "positions": lambda *sizes: RelativeMultiHeadAttention(
        *sizes, max_relative_position=(sum(NUM_LABELS) - 1) // 2
    ),
    "relations": lambda *sizes: RelationMultiHeadAttention(*sizes, NUM_LABELS),
}


class VariablePointer(keras.layers.Layer):
    """Predicts the variable at the hole: logits `[B, MAX_VARIABLES]` from nodes `[B, T, D]`.

    Every mention of a variable is scored against the hole. The logit of a variable is the
    log-sum-exp of the scores of its mentions, about -1e9 without mentions.
    """

    def build(self, nodes_shape, names_shape):
        self.query_dense = keras.layers.Dense(nodes_shape[-1], name="query")
        self.key_dense = keras.layers.Dense(nodes_shape[-1], name="key")
        self.query_dense.build(nodes_shape)
        self.key_dense.build(nodes_shape)

    def call(self, nodes, names):
        is_hole = ops.cast(ops.equal(names, data.HOLE_ID), nodes.dtype)
        hole = self.query_dense(ops.sum(nodes * is_hole[..., None], axis=1, keepdims=True))
        scores = ops.sum(hole * self.key_dense(nodes), axis=-1) * nodes.shape[-1] ** -0.5
        numbers = ops.arange(graphs.MAX_VARIABLES) + data.FIRST_VARIABLE
        mentions = ops.equal(names[:, None, :], numbers[None, :, None])
        return ops.logsumexp(ops.where(mentions, scores[:, None, :], -1e9), axis=-1)


def make_model(kind, vocabulary, width=64, num_layers=2, num_heads=4, dropout=0.1):
    """Returns a model of a kind, a key of `ATTENTION`, from the inputs of `data.make_batch`."""
    fields, edges = data.FIRST_IDS, ("tree_labels", "name_labels") if kind == "relations" else ()
    ids = {field: keras.Input((None,), dtype="int32", name=field) for field in fields}
    labels = {field: keras.Input((None, None), dtype="int8", name=field) for field in edges}
    sizes = [data.FIRST_IDS[field] + len(vocabulary[field]) for field in fields]
    x = [keras.layers.Embedding(size, width)(ids[field]) for field, size in zip(fields, sizes)]
    x = keras.layers.Add()(x)
    mask = ops.not_equal(ids["kinds"], 0)[:, None, :]
    edges = {"relations": tuple(labels.values())} if labels else {}
    for _ in range(num_layers):
        y = keras.layers.LayerNormalization()(x)
        attention = ATTENTION[kind](num_heads, width // num_heads)
        x = x + keras.layers.Dropout(dropout)(attention(y, y, attention_mask=mask, **edges))
        y = FeedForward(4 * width)(keras.layers.LayerNormalization()(x))
        x = x + keras.layers.Dropout(dropout)(y)
    x = keras.layers.LayerNormalization()(x)
    return keras.Model({**ids, **labels}, VariablePointer()(x, ids["names"]))
