"""Three models that differ only in their attention layers."""

import keras
from keras import ops

from examples.python_trees import data, graphs
from t2t_relpos.layers import FeedForward, RelationMultiHeadAttention, RelativeMultiHeadAttention

NUM_LABELS = (graphs.NUM_TREE_LABELS, len(graphs.NAME_LABELS))
# With this value, the number of table rows equals the number of edge labels.
MAX_RELATIVE_POSITION = (sum(NUM_LABELS) - 1) // 2
KINDS = ("content", "positions", "relations")


class VariablePointer(keras.layers.Layer):
    """A pointer layer that predicts the variable at the hole from the node representations.

    Every mention of a variable is scored against the hole. The logit of a variable is the
    log-sum-exp of the scores of its mentions.

    Call arguments:
        nodes: `[B, T, D]`.
        names: int `[B, T]`.

    Returns:
        Logits `[B, MAX_VARIABLES]`; about -1e9 for numbers that the function does not use.
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
    """Returns a model that predicts the variable at the hole.

    Args:
        kind: "content" (attention without positions and edges), "positions" (relative positions in
            source order) or "relations" (edge labels, no positions).
        vocabulary: ids of kinds, roles and names.
        width: D.
        num_layers: number of attention and feed-forward layers.
        num_heads: N.
        dropout: rate.

    Returns:
        A `keras.Model`. Its inputs are a dict of "kinds", "roles", "names" `[B, T]` and, for
        "relations", "tree_labels", "name_labels" `[B, T, T]`. Its outputs are logits
        `[B, MAX_VARIABLES]`.

    Raises:
        ValueError: if `kind` is unknown.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {KINDS}, got {kind!r}.")
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
        y = _make_attention(kind, num_heads, width // num_heads)(y, y, attention_mask=mask, **edges)
        x = x + keras.layers.Dropout(dropout)(y)
        y = FeedForward(4 * width)(keras.layers.LayerNormalization()(x))
        x = x + keras.layers.Dropout(dropout)(y)
    x = keras.layers.LayerNormalization()(x)
    return keras.Model({**ids, **labels}, VariablePointer()(x, ids["names"]))


def _make_attention(kind, num_heads, key_dim):
    if kind == "relations":
        return RelationMultiHeadAttention(num_heads, key_dim, NUM_LABELS)
    if kind == "positions":
        return RelativeMultiHeadAttention(
            num_heads, key_dim, max_relative_position=MAX_RELATIVE_POSITION
        )
    return RelativeMultiHeadAttention(
        num_heads, key_dim, use_key_table=False, use_value_table=False
    )
