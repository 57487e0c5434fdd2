"""Error messages for variables that differ between a checkpoint and its hparams."""

import re

MAX_LINES = 12
# Part of a variable's name -> the hparams that determine its presence or shape.
_HPARAMS_BY_NAME_PART = (
    (
        "symbol_modality",
        "the vocabulary, hidden_size, symbol_modality_num_shards and "
        "shared_embedding_and_softmax_weights",
    ),
    ("target_space_embedding", "use_target_space_embedding and hidden_size"),
    ("positional_embedding", "pos, max_length and hidden_size"),
    (
        "self_attention_relative_v2",
        "self_attention_type, max_relative_position, heads_share_relative_embedding, "
        "add_relative_to_values, attention_key_channels and attention_value_channels",
    ),
    ("relative_positions", "self_attention_type, max_relative_position, hidden_size and num_heads"),
    ("layer_prepostprocess", "layer_preprocess_sequence, hidden_size and num_hidden_layers"),
    ("layer_postprocess", "layer_postprocess_sequence, hidden_size and num_hidden_layers"),
    ("/ffn/", "filter_size, hidden_size, num_hidden_layers and ffn_layer"),
    (
        "multihead_attention",
        "hidden_size, num_hidden_layers, num_encoder_layers, num_decoder_layers, "
        "attention_key_channels, attention_value_channels and attention_variables_3d",
    ),
)


def check_shapes(received, expected):
    """Raises ValueError if two dicts of shapes by name differ. The message lists differences."""
    missing = _lines(expected.keys() - received.keys(), "missing: {}, expected shape {}", expected)
    extra = _lines(received.keys() - expected.keys(), "unexpected: {}, received shape {}", received)
    changed = {
        name: f"{list(expected[name])}, received {list(received[name])}"
        for name in expected.keys() & received.keys()
        if tuple(expected[name]) != tuple(received[name])
    }
    problems = [*missing, *extra, *_lines(changed, "wrong shape: {}, expected {}", changed)]
    if problems:
        raise ValueError(
            "Expected a checkpoint with the variables that the hparams describe. Received one that "
            "differs:\n  " + "\n  ".join(problems)
        )


def _lines(names, text, values):
    """Returns one line for each name; the shards of an embedding share a line."""
    lines = []
    for group in _groups(names):
        name = group[0] if len(group) == 1 else f"{group[0]} to {group[-1].rpartition('/')[2]}"
        value = values[group[0]]
        value = value if isinstance(value, str) else list(value)
        lines.append(text.format(name, value) + _hint(name))
    more = len(lines) - MAX_LINES
    return [*lines[:MAX_LINES], f"and {more} more of these"] if more > 0 else lines


def _groups(names):
    """Returns sorted lists of names; `SCOPE/weights_0`, `SCOPE/weights_1`, … form one list."""
    groups = {}
    for name in sorted(names, key=_natural_sort_key):
        scope = re.sub(r"/weights_\d+$", "/weights", name)
        groups.setdefault(scope, []).append(name)
    return list(groups.values())


def _natural_sort_key(name):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _hint(name):
    for part, hparams in _HPARAMS_BY_NAME_PART:
        if part in name:
            return f" (check {hparams})"
    return ""
