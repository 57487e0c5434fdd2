"""What every attention of a Transformer does with one pair of sentences, as arrays.

The model itself is run, and its attention layers are listened to: nothing of its forward pass is written down here a second time.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from keras import ops

from t2t_relpos.attention.attend import relative_scores
from t2t_relpos.attention.masks import causal_mask, combine_masks


class Part(NamedTuple):
    """One of the three kinds of attention: its id, and the names of its layer in a block and of the block's stack."""

    id: str
    attention: str
    stack: str


ENCODER = Part("encoder", "self_attention", "encoder_layers")
DECODER = Part("decoder", "self_attention", "decoder_layers")
CROSS = Part("cross", "cross_attention", "decoder_layers")
PARTS = (ENCODER, DECODER, CROSS)


@dataclasses.dataclass(frozen=True)
class AttentionMap:
    """One attention layer, for one sentence pair.

    Attributes:
        query: `[N, T, H]`, scaled, as the layer multiplies it with keys.
        weights: `[N, T, S]`, what the layer gives: softmax of `content + position` over the visible keys.
        content: `[N, T, S]`, q·k.
        position: `[N, T, S]`, q·a^K of the pair's distance; None where the layer has no such table.
        visible: bool `[T, S]`, whether the query may attend to the key.
        key_table: a^K, `[2K + 1, H]` or `[N, 2K + 1, H]`, or None.
        value_table: a^V likewise.
    """

    query: np.ndarray
    weights: np.ndarray
    content: np.ndarray
    position: np.ndarray | None
    visible: np.ndarray
    key_table: np.ndarray | None
    value_table: np.ndarray | None


def attention_maps(transformer, source, target) -> dict[str, list[AttentionMap]]:
    """Runs a Transformer on one sentence pair and tells what every attention layer did.

    Args:
        transformer: a `t2t_relpos.models.Transformer`.
        source: ids of the source, `[S]`, EOS included.
        target: ids of the translation, `[T]`, EOS included; query i of the decoder predicts id i, and has read those before.

    Returns:
        By the id of a part ("encoder", "decoder", "cross"), a map for every layer, the first one first.

    Example:

    >>> from t2t_relpos.models import Transformer, TransformerConfig
    >>> small = {"num_encoder_layers": 2, "num_decoder_layers": 1}
    >>> model = Transformer(TransformerConfig.from_preset("tiny", vocab_size=11, **small))
    >>> maps = attention_maps(model, [5, 7, 9, 1], [3, 4, 1])
    >>> {part: [layer.weights.shape for layer in layers] for part, layers in maps.items()}
    {'encoder': [(4, 4, 4), (4, 4, 4)], 'decoder': [(4, 3, 3)], 'cross': [(4, 3, 4)]}
    """
    layers = {part.id: _attentions(transformer, part) for part in PARTS}
    heard = {}
    with contextlib.ExitStack() as stack:
        for part, attentions in layers.items():
            heard[part] = [stack.enter_context(listening(attention)) for attention in attentions]
        transformer(
            {"inputs": np.array([source], "int32"), "targets": np.array([target], "int32")},
            training=False,
        )
    return {part: [listener["map"] for listener in listeners] for part, listeners in heard.items()}


def tables(transformer) -> dict[str, list[tuple[np.ndarray | None, np.ndarray | None]]]:
    """(a^K, a^V) of every attention layer by the id of its part; None for a table that it lacks."""
    return {
        part.id: [_tables(attention) for attention in _attentions(transformer, part)]
        for part in PARTS
    }


@contextlib.contextmanager
def listening(attention) -> Iterator[dict]:
    """Listens to a `RelativeMultiHeadAttention` that is called with a single sentence.

    Yields:
        A dict, which the call fills: `map`, an `AttentionMap`.
    """
    heard = {}

    def attend(query, key, value, **kwargs):
        outputs, weights = type(attention).attend(
            attention, query, key, value, **kwargs | {"return_weights": True}
        )
        heard["map"] = _map(attention, query, key, weights, **kwargs)
        return outputs, weights

    attention.attend = attend
    try:
        yield heard
    finally:
        del attention.attend


def _attentions(transformer, part):
    return [getattr(block, part.attention) for block in getattr(transformer, part.stack)]


def _tables(attention):
    embeddings = (attention.key_embedding, attention.value_embedding)
    return tuple(
        None if embedding is None else ops.convert_to_numpy(embedding.table)
        for embedding in embeddings
    )


def _map(attention, query, key, weights, *, mask=None, causal=False, query_offset=None, **others):
    lengths = query.shape[2], key.shape[2]
    offset = lengths[1] - lengths[0] if query_offset is None else query_offset
    key_table, value_table = _tables(attention)
    position = (
        None
        if key_table is None
        else relative_scores(query, attention.key_embedding.table, lengths[1], offset)
    )
    hidden_by = combine_masks(mask, causal_mask(*lengths, offset) if causal else None)
    visible = np.ones(lengths, bool)
    if hidden_by is not None:
        visible = np.broadcast_to(hidden_by, (1, 1, *lengths))[0, 0]
    arrays = (query, weights, ops.matmul(query, ops.swapaxes(key, -1, -2)), position)
    query, weights, content, position = (
        None if x is None else ops.convert_to_numpy(x)[0] for x in arrays
    )
    return AttentionMap(query, weights, content, position, visible, key_table, value_table)
