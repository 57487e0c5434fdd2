"""Multi-head attention over a labeled, directed, fully connected graph."""

import keras
from keras import ops

from t2t_relpos import _checks
from t2t_relpos.attention.gather import (
    expand_by_index,
    matmul_by_position,
    pair_index,
    products_with_keys,
    sum_by_index,
)
from t2t_relpos.attention.masks import causal_mask, masked_softmax
from t2t_relpos.attention.tables import relative_values, scores_by_id
from t2t_relpos.layers.attention_base import AttentionBase, pair_mask
from t2t_relpos.layers.layer_mixin import config_of


@keras.saving.register_keras_serializable(package="t2t_relpos")
class RelationMultiHeadAttention(AttentionBase):
    """Multi-head attention with a labeled edge between every query and key.

    The edge of a pair has two vectors. One is added to the key in the score, the other to the value
    in the output. `RelativeMultiHeadAttention` is the case in which the label is the clipped
    distance.

    Memory is O(B·N·T·(S + R)): neither a `[T, S, H]` nor a `[T, S, R]` tensor is built for labels.

    Args:
        num_heads: N, number of attention heads.
        key_dim: H, size of a head for queries and keys.
        num_relations: R, number of labels. A tuple: one number for each of several channels, whose
            vectors are added. Default: None, for calls with edge vectors only.
        use_key_table: whether labels act on scores. Default: True.
        use_value_table: whether labels act on outputs. Default: True.
        share_heads: True: all heads share the tables. False: each head has tables. Default: True.
        table_initializer: initializer of the tables. Default: `"glorot_uniform"`.
        **kwargs: `value_dim`, `dropout`, `use_bias`, `output_shape`, initializers, regularizers,
            constraints, `use_gate` and `seed` as in `RelativeMultiHeadAttention`; `name`, `dtype`,
            `trainable` of `keras.layers.Layer`.

    Call arguments:
        query: `[B, T, D]`.
        value: `[B, S, D]`.
        key: `[B, S, D]`. Default: `value`.
        relations: int labels `[B, T, S]` or `[T, S]`; with several channels, a tuple or list of
            them. -1 means no edge: nothing is added. Other labels outside of `[0, R)` raise an
            error in eager calls and mean no edge in compiled code. Default: None.
        key_edges: edge vectors for scores `[B, T, S, key_dim]`, added to those of labels. Default:
            None.
        value_edges: edge vectors for outputs `[B, T, S, value_dim]`. Default: None.
        query_mask: bool `[B, T]`, True = a token. A masked query gets zeros before the output
            projection. Default: the mask of a mask_zero embedding.
        value_mask: bool `[B, S]`, True = attend. Default: the mask of a mask_zero embedding.
        key_mask: bool `[B, S]`, True = attend. Default: the mask of a mask_zero embedding.
        attention_mask: bool, `[B, T, S]`, `[T, S]` or `[B, N, T, S]`; True = attend. Pairs without
            an edge are not masked. Default: None.
        return_attention_scores: whether to return (outputs, scores). Default: False.
        training: whether dropout is applied. Default: Keras's training mode.
        use_causal_mask: whether keys after a query are masked. Default: False.

    Returns:
        outputs `[B, T, D]`; if requested, (outputs, scores `[B, N, T, S]`), the weights after
        softmax and before dropout.

    Raises:
        ValueError: if relations are missing, are not integers, have the wrong shape or number of
            channels, or are out of range in an eager call; if relations are given but there are no
            tables; if edge vectors have the wrong shape.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.layers import RelationMultiHeadAttention
    >>> attention = RelationMultiHeadAttention(num_heads=2, key_dim=4, num_relations=3)
    >>> nodes = np.random.default_rng(0).normal(size=(1, 3, 8)).astype("float32")
    >>> parent, child, itself, none = 0, 1, 2, -1
    >>> tree = np.array([[[itself, child, child], [parent, itself, none], [parent, none, itself]]])
    >>> tuple(attention(nodes, nodes, relations=tree).shape)
    (1, 3, 8)

    Reference: Shaw et al. 2018, section 3.1, equations 3 and 4.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        num_relations=None,
        *,
        use_key_table=True,
        use_value_table=True,
        share_heads=True,
        table_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(
            num_heads,
            key_dim,
            share_heads=share_heads,
            table_initializer=table_initializer,
            **kwargs,
        )
        channels = () if num_relations is None else num_relations
        channels = tuple(channels) if isinstance(channels, (tuple, list)) else (channels,)
        if num_relations is not None and not channels:
            raise ValueError(
                "Expected `num_relations` to be a number of labels, or one for each label channel. "
                f"Received: {num_relations!r}. For edge vectors without labels, pass None."
            )
        self.num_relations = tuple(_checks.positive_int(r, "num_relations") for r in channels)
        if channels and not (use_key_table or use_value_table):
            raise ValueError(
                "Expected use_key_table or use_value_table with `num_relations`: labels without a "
                "table have no effect. Received: both False."
            )
        self.use_key_table = use_key_table
        self.use_value_table = use_value_table

    def build(self, query_shape, value_shape, key_shape=None, **edge_shapes):
        super().build(query_shape, value_shape, key_shape)
        self.key_tables = self._tables("key_table", self.use_key_table, self.key_dim)
        self.value_tables = self._tables("value_table", self.use_value_table, self.value_dim)

    def _tables(self, name, enabled, depth):
        return [
            self._add_table(f"{name}_{channel}", num_labels, depth)
            for channel, num_labels in enumerate(self.num_relations)
            if enabled
        ]

    def call(
        self,
        query,
        value,
        key=None,
        relations=None,
        key_edges=None,
        value_edges=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
    ):
        key = value if key is None else key
        padding_masks = query_mask, value_mask, key_mask
        sizes = self._check_call((query, value, key), padding_masks, attention_mask)
        batch, length_q, length_k = ops.shape(query)[0], ops.shape(query)[1], ops.shape(key)[1]
        indices = self._indices(relations, (batch, length_q, length_k), sizes)
        self._check_edges(key_edges, value_edges, sizes)
        causal = causal_mask(length_q, length_k) if use_causal_mask else None
        mask = pair_mask(query_mask, [key_mask, value_mask], attention_mask, causal)
        queries = self.project_query(query)
        scores = products_with_keys(queries, self.project_key(key))
        for table, index in zip(self.key_tables, indices):
            by_label = scores_by_id(queries, ops.convert_to_tensor(table))
            scores = scores + expand_by_index(by_label, index)
        if key_edges is not None:
            edges = ops.swapaxes(ops.cast(key_edges, queries.dtype), -1, -2)
            scores = scores + ops.cast(_by_query(queries, edges), scores.dtype)
        weights = ops.cast(masked_softmax(scores, mask), queries.dtype)
        dropped_weights = self._drop(weights, training)
        outputs = ops.matmul(dropped_weights, self.project_value(value))
        for table, index in zip(self.value_tables, indices):
            table = ops.convert_to_tensor(table)
            by_label = sum_by_index(ops.cast(dropped_weights, scores.dtype), index, table.shape[-2])
            outputs = outputs + relative_values(by_label, table, queries.dtype)
        if value_edges is not None:
            outputs = outputs + _by_query(
                dropped_weights, ops.cast(value_edges, dropped_weights.dtype)
            )
        outputs = self.project_output(outputs, query)
        return (outputs, weights) if return_attention_scores else outputs

    def _indices(self, relations, shape, sizes):
        """Returns the result of `pair_index` for every label channel."""
        channels = relations if isinstance(relations, (tuple, list)) else [relations]
        channels = [labels for labels in channels if labels is not None]
        if channels and not self.num_relations:
            raise ValueError(
                "Expected no `relations`: the layer has no tables for labels. Received: "
                f"{len(channels)} label channels. Pass num_relations, the number of labels, to the "
                "constructor."
            )
        if len(channels) != len(self.num_relations):
            raise ValueError(
                f"Expected `relations` for each label channel of num_relations="
                f"{self.num_relations}. Received: {len(channels)} instead of "
                f"{len(self.num_relations)}."
            )
        indices = []
        for labels, num_labels in zip(channels, self.num_relations):
            labels = ops.convert_to_tensor(labels)
            _checks.check(labels, "relations", "B T S | T S", "int", sizes, broadcast="B")
            _checks.in_range(labels, "labels", -1, num_labels, "-1 means no edge.")
            indices.append(pair_index(ops.broadcast_to(labels, shape), num_labels, self.num_heads))
        return indices

    def _check_edges(self, key_edges, value_edges, sizes):
        if not self.num_relations and key_edges is None and value_edges is None:
            raise ValueError(
                "Expected `relations` (with num_relations), `key_edges` or `value_edges`. "
                "Received: none. Without edges, use keras.layers.MultiHeadAttention."
            )
        for name, edges, depth in (
            ("key_edges", key_edges, self.key_dim),
            ("value_edges", value_edges, self.value_dim),
        ):
            expected = sizes | {"H": depth}
            _checks.check(edges, name, "B T S H", sizes=expected, broadcast="B")

    def get_config(self):
        config = {**super().get_config(), **config_of(self, "use_key_table use_value_table")}
        return {**config, "num_relations": self.num_relations or None}


def _by_query(x, edges):
    """Returns `[B, N, T, X]` times one matrix per query, `[B or 1, T, X, Y]`: `[B, N, T, Y]`."""
    # With one query, the product below could corrupt memory: see `backend.matmul_matrix`.
    if edges.shape[0] == 1:
        return matmul_by_position(x, edges[0])
    product = ops.matmul(ops.swapaxes(x, 1, 2), edges)
    return ops.swapaxes(product, 1, 2)
