"""Three models that differ in their attention alone."""

import keras
from keras import ops

from examples.python_trees import data, graphs
from t2t_relpos.layers import FeedForward, RelationMultiHeadAttention, RelativeMultiHeadAttention

NUM_LABELS = (graphs.NUM_TREE_LABELS, len(graphs.NAME_LABELS))
# As many rows of tables as there are labels of edges.
MAX_RELATIVE_POSITION = (sum(NUM_LABELS) - 1) // 2
KINDS = ("content", "positions", "relations")


class Choice(keras.layers.Layer):
    """Which variable belongs into the hole, from what was found out about nodes.

    Every mention of a variable is compared with the hole; a variable's logit
    is the log of the sum over its mentions of the exponentials.

    Call arguments:
        nodes: `[B, T, D]`.
        names: int `[B, T]`.

    Returns:
        `[B, MAX_VARIABLES]` logits; -1e9 for numbers that the function does not use.
    """

    def build(self, nodes_shape, names_shape):
        width = nodes_shape[-1]
        self.query_dense = keras.layers.Dense(width, name="query", dtype=self.dtype_policy)
        self.query_dense.build(nodes_shape)
        self.key_dense = keras.layers.Dense(width, name="key", dtype=self.dtype_policy)
        self.key_dense.build(nodes_shape)

    def call(self, nodes, names):
        is_hole = ops.cast(ops.equal(names, data.HOLE_ID), nodes.dtype)
        hole = self.query_dense(ops.sum(nodes * is_hole[..., None], axis=1, keepdims=True))
        scores = ops.sum(hole * self.key_dense(nodes), axis=-1) * nodes.shape[-1] ** -0.5
        numbers = ops.arange(graphs.MAX_VARIABLES) + data.FIRST_VARIABLE
        mentions = ops.equal(names[:, None, :], numbers[None, :, None])
        return ops.logsumexp(ops.where(mentions, scores[:, None, :], -1e9), axis=-1)


def make_model(
    kind: str, vocabulary: data.Vocabulary, width=64, num_layers=2, num_heads=4, dropout=0.1
):
    """A model of nodes' ids, and of labels of edges if `kind` is "relations".

    Args:
        kind: "content": attention that knows neither order nor edges.
            "positions": relative positions in the order of the source.
            "relations": labels of edges, and no positions.
        vocabulary: whose ids are embedded.
        width: D.
        num_layers: of attention and feed-forward network each.
        num_heads: N.
        dropout: rate.

    Returns:
        a keras.Model of a dict `{"kinds", "roles", "names"}` of `[B, T]`, with
        `{"tree_labels", "name_labels"}` of `[B, T, T]`, that gives
        `[B, MAX_VARIABLES]` logits.
    """
    if kind not in KINDS:
        raise ValueError(f"Expected kind to be one of {KINDS}. Received: {kind!r}.")
    ids = {
        field: keras.Input((None,), dtype="int32", name=field)
        for field in ("kinds", "roles", "names")
    }
    labels = {
        field: keras.Input((None, None), dtype="int8", name=field)
        for field in ("tree_labels", "name_labels")
        if kind == "relations"
    }
    sizes = (
        2 + len(vocabulary.kinds),
        2 + len(vocabulary.roles),
        data.FIRST_WORD + len(vocabulary.names),
    )
    x = keras.layers.Add()(
        [keras.layers.Embedding(size, width)(nodes) for size, nodes in zip(sizes, ids.values())]
    )
    mask = ops.not_equal(ids["kinds"], 0)[:, None, :]
    edges = {"relations": tuple(labels.values())} if labels else {}
    for _ in range(num_layers):
        y = keras.layers.LayerNormalization()(x)
        y = _attention(kind, num_heads, width // num_heads)(y, y, attention_mask=mask, **edges)
        x = x + keras.layers.Dropout(dropout)(y)
        y = FeedForward(4 * width)(keras.layers.LayerNormalization()(x))
        x = x + keras.layers.Dropout(dropout)(y)
    x = keras.layers.LayerNormalization()(x)
    return keras.Model({**ids, **labels}, Choice()(x, ids["names"]))


def _attention(kind, num_heads, key_dim):
    if kind == "relations":
        return RelationMultiHeadAttention(num_heads, key_dim, NUM_LABELS)
    if kind == "positions":
        return RelativeMultiHeadAttention(num_heads, key_dim, MAX_RELATIVE_POSITION)
    return RelativeMultiHeadAttention(
        num_heads, key_dim, use_key_table=False, use_value_table=False
    )
