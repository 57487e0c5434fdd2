"""Attention maps of a Transformer: weights and logits for a sentence, and norms of its tables."""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from keras import ops

from t2t_relpos.attention.band import Distances


class AttentionKind(NamedTuple):
    """One of the three kinds of attention: encoder, decoder or cross-attention.

    `stack` and `attention` are attributes of the Transformer and of its blocks.
    """

    id: str
    title: str
    stack: str
    attention: str

    def layers(self, transformer) -> list:
        """Returns the attention layers of this kind."""
        return [getattr(block, self.attention) for block in getattr(transformer, self.stack)]


KINDS = (
    AttentionKind("cross", "Cross-attention", "decoder_layers", "cross_attention"),
    AttentionKind("encoder", "Encoder self-attention", "encoder_layers", "self_attention"),
    AttentionKind("decoder", "Decoder self-attention", "decoder_layers", "self_attention"),
)


class AttentionMap(NamedTuple):
    """The weights and logits of one attention layer for one sentence pair.

    Attributes:
        weights: `[N, T, S]`, the softmax of `content + position` over the visible keys.
        content: `[N, T, S]`, the products q·k with scaled q.
        position: `[N, T, S]`, the products of q and rows of a^K; None without a key table.
        visible: bool `[T, S]`, whether the query may attend to the key.
    """

    weights: np.ndarray
    content: np.ndarray
    position: np.ndarray | None
    visible: np.ndarray


class NormLine(NamedTuple):
    """The row norms of a layer's table, or of one head's table if heads have separate tables.

    Attributes:
        layer: number of the layer, from 1.
        column: 0 for a^K, 1 for a^V.
        distances: -left..right, key position minus query position.
        norms: Euclidean norms of the rows.
    """

    layer: int
    column: int
    distances: list[int]
    norms: np.ndarray


def record_attention_maps(transformer, source_ids, target_ids) -> dict[str, list[AttentionMap]]:
    """Runs a Transformer on one sentence pair and records its attention layers.

    Args:
        transformer: a `t2t_relpos.models.Transformer`.
        source_ids: token ids of the source, with EOS.
        target_ids: token ids of the translation, with EOS. Query i of the decoder predicts id i.

    Returns:
        The attention maps of all layers, by the id of the attention kind.
    """
    maps, inputs = {}, {"inputs": source_ids, "targets": target_ids}
    with contextlib.ExitStack() as stack:
        for kind in KINDS:
            layers = kind.layers(transformer)
            maps[kind.id] = [stack.enter_context(record_attention(layer)) for layer in layers]
        transformer({name: np.array([ids], "int32") for name, ids in inputs.items()})
    return {kind: [calls[0] for calls in layers] for kind, layers in maps.items()}


@contextlib.contextmanager
def record_attention(layer) -> Iterator[list[AttentionMap]]:
    """Records the calls of a `RelativeMultiHeadAttention` layer on single sentences.

    Yields:
        A list to which every call appends an `AttentionMap`.
    """
    maps = []

    def attend(query, key, value, **options):
        options["return_weights"] = True
        outputs, weights = type(layer).attend(layer, query, key, value, **options)
        maps.append(_make_map(layer, query, key, weights, **options))
        return outputs, weights

    layer.attend = attend
    try:
        yield maps
    finally:
        del layer.attend


def _make_map(layer, query, key, weights, *, causal=False, query_offset=None, **_):
    query, key, weights = (ops.convert_to_numpy(x)[0] for x in (query, key, weights))
    length_q, length_k = weights.shape[1:]
    offset = length_k - length_q if query_offset is None else query_offset
    distances = np.arange(length_k) - (np.arange(length_q)[:, None] + offset)
    visible = distances <= 0 if causal else np.ones((length_q, length_k), bool)
    position = None
    if layer.key_embedding is not None:
        table = ops.convert_to_numpy(layer.key_embedding.table)
        position = _position_logits(query, table, distances, layer.max_relative_position)
    return AttentionMap(weights, query @ key.swapaxes(-1, -2), position, visible)


def _position_logits(query, table, distances, max_relative_position):
    """Returns the product of each query and the table row of each key's distance, `[N, T, S]`."""
    left, right = Distances.of(max_relative_position)
    rows = np.clip(distances, -left, right) + left
    by_row = query @ table.swapaxes(-1, -2)
    return np.take_along_axis(by_row, np.broadcast_to(rows, (len(query), *rows.shape)), axis=-1)


def read_table_norms(transformer) -> dict[str, list[NormLine]]:
    """Returns the row norms of all relative-position tables by the id of the attention kind."""
    return {
        kind.id: [
            NormLine(number, column, _row_distances(layer), norms)
            for number, layer in enumerate(kind.layers(transformer), start=1)
            for column, table in enumerate((layer.key_embedding, layer.value_embedding))
            if table is not None
            for norms in row_norms(ops.convert_to_numpy(table.table))
        ]
        for kind in KINDS
    }


def _row_distances(layer):
    """Returns the distances of the table rows of an attention layer."""
    left, right = Distances.of(layer.max_relative_position)
    return list(range(-left, right + 1))


def row_norms(table: np.ndarray) -> np.ndarray:
    """Returns the row norms of a table `[R, H]` or `[N, R, H]`: `[1 or N, R]`."""
    return np.atleast_2d(np.linalg.norm(table, axis=-1))


def measure_logit_parts(layer: AttentionMap) -> dict[str, np.ndarray]:
    """Returns the contributions of content and position to the logits of a layer with a key table.

    Softmax is invariant to a constant added to all logits of a query. Therefore each query's mean
    over visible keys is subtracted from both parts first.

    Returns:
        Values of all heads, `[N]`, by name:
        "content", "position": root mean square of q·k and of q·a^K over all visible pairs.
        "share": mean square of the position part divided by the sum of both mean squares; nan if
            both are 0.
        "moved": total variation distance between the attention weights with and without the
            position part, averaged over queries; from 0 to 1.
    """
    visible = layer.visible
    parts = (subtract_row_means(part, visible) for part in (layer.content, layer.position))
    content, position = (np.mean(part[:, visible] ** 2, axis=-1) for part in parts)
    total = content + position
    share = np.divide(position, total, out=np.full_like(total, np.nan), where=total > 0)
    moved = np.abs(layer.weights - softmax(layer.content, visible)).sum(-1).mean(-1) / 2
    roots = {"content": np.sqrt(content), "position": np.sqrt(position)}
    return roots | {"share": share, "moved": moved}


def subtract_row_means(logits: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Subtracts from each query's logits their mean over the visible keys; masked keys get 0.

    Args:
        logits: `[N, T, S]`.
        visible: bool `[T, S]`.
    """
    masked = np.where(visible, logits.astype("float64"), 0.0)
    means = masked.sum(-1, keepdims=True) / visible.sum(-1, keepdims=True)
    return np.where(visible, masked - means, 0.0)


def softmax(logits: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Returns the softmax of logits `[N, T, S]` over the visible keys, bool `[T, S]`."""
    logits = np.where(visible, logits.astype("float64"), -np.inf)
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
