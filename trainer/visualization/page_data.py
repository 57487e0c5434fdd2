"""What the page shows, as plain lists and dicts for JSON."""

import numpy as np

from t2t_relpos.models import TransformerConfig
from trainer.visualization import attention_maps
from trainer.visualization.attention_maps import AttentionMap
from trainer.visualization.logit_parts import logit_parts
from trainer.visualization.sentence_pair import SentencePair
from trainer.visualization.table_statistics import distances, mean_logits, row_norms

# More would make the page larger and no clearer.
_DIGITS = 4
# What the decoder reads first.
_GO = "‹go›"
_TITLES = {
    "encoder": ("Encoder self-attention", "attends from", "to"),
    "decoder": ("Decoder self-attention", "about to write", "has read"),
    "cross": ("Decoder to encoder", "about to write", "source"),
}


def page_data(
    config: TransformerConfig,
    pair: SentencePair,
    names: list[str],
    maps: dict[str, list[AttentionMap]],
    model: str,
) -> dict:
    """Everything that the page shows.

    Args:
        config: of the Transformer.
        pair: the sentences.
        names: of the vocabulary's ids.
        maps: as `attention_maps` gives them.
        model: where the model lies, for the reader.

    Returns:
        `model`, `settings` (by name), `source` and `target` (`text`, `tokens`), `isGiven`, and `parts`: for every kind of attention
        `id`, `title`, labels of `queries` and `keys`, their titles, `isCausal`, `reason` (why it has no a^K, or None) and `layers`.
        Numbers have 4 digits; pairs that the query does not see are None.
    """
    source, target = ([names[i] for i in ids] for ids in (pair.source_ids, pair.target_ids))
    read = [_GO, *target[:-1]]
    labels = {"encoder": (source, source), "decoder": (target, read), "cross": (target, source)}
    parts = []
    for part in attention_maps.PARTS:
        title, query_title, key_title = _TITLES[part.id]
        queries, keys = labels[part.id]
        parts.append(
            {
                "id": part.id,
                "title": title,
                "queryTitle": query_title,
                "keyTitle": key_title,
                "queries": queries,
                "keys": keys,
                "isCausal": part is attention_maps.DECODER,
                "reason": no_position(config, part.id),
                "layers": [_layer(layer) for layer in maps[part.id]],
            }
        )
    settings = {name: value for name, value in config.to_dict().items() if value is not None}
    sentences = {
        "source": {"text": pair.source, "tokens": source},
        "target": {"text": pair.target, "tokens": target},
    }
    return {
        "model": model,
        "settings": settings,
        **sentences,
        "isGiven": pair.is_given,
        "parts": parts,
    }


def no_position(config: TransformerConfig, part: str) -> str | None:
    """Why the logits of a part have no term of relative position, or None where they have."""
    if not config.relative:
        return f"This model has position={config.position}: no tables of relative positions, and logits that are content alone."
    if part == "cross" and not config.relative_cross_attention:
        return (
            "In this model the decoder attends to the encoder without relative positions (relative_cross_attention is off): there are "
            "no tables, and these logits are content alone."
        )
    if not config.use_key_table:
        without = (
            "no a^K (use_key_table is off)"
            if config.use_value_table
            else "neither a^K nor a^V (both tables are off)"
        )
        return f"This model has {without}: its logits are content alone."
    return None


def _layer(layer):
    content = {"weights": layer.weights}
    parts = [None] * len(layer.weights)
    if layer.position is not None:
        content |= {"content": layer.content, "position": layer.position}
        parts = [
            {name: _number(value) for name, value in head._asdict().items()}
            for head in logit_parts(layer)
        ]
    heads = [
        {name: _rows(values[head], layer.visible) for name, values in content.items()}
        | {"parts": parts[head]}
        for head in range(len(layer.weights))
    ]
    return {"heads": heads, "tables": _tables(layer)}


def _tables(layer):
    """None without tables; norms have one row for all heads, or one for each."""
    present = [table for table in (layer.key_table, layer.value_table) if table is not None]
    if not present:
        return None
    profiles = {
        "keyNorms": None if layer.key_table is None else row_norms(layer.key_table),
        "valueNorms": None if layer.value_table is None else row_norms(layer.value_table),
        "meanLogits": None if layer.key_table is None else mean_logits(layer),
    }
    profiles = {name: None if rows is None else _rows(rows) for name, rows in profiles.items()}
    return {"distances": distances(present[0])} | profiles


def _rows(matrix, visible=None):
    visible = np.ones(matrix.shape, bool) if visible is None else visible
    return [
        [_number(x) if seen else None for x, seen in zip(*row)]
        for row in zip(matrix.tolist(), visible.tolist())
    ]


def _number(x):
    return float(f"{x:.{_DIGITS}g}") if np.isfinite(x) else None
