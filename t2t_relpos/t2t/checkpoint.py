"""Converts between tensor2tensor variables and the weights of a model, in memory."""

import re

import numpy as np

from t2t_relpos import _checks
from t2t_relpos.models.causal_lm import CausalLM
from t2t_relpos.t2t.weight_names import (
    canonical_weights,
    embedding_names,
    expected_shapes,
    shard_sizes,
    t2t_names,
)

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


def load_t2t_weights(model, arrays, num_shards=16):
    """Sets the weights of a model from tensor2tensor variables.

    Args:
        model: a `Transformer` or a `CausalLM`, for example built from `config_from_hparams`.
        arrays: a dict that maps variable names to arrays. The global step and optimizer slots
            are ignored. Names with doubled scopes
            (`transformer/parallel_0_4/transformer/transformer/body/…`) are treated as the same
            names without the doubled scope. Arrays of dtype bfloat16 are decoded by
            `decode_eighth_power`.
        num_shards: t2t's `symbol_modality_num_shards`. Default: 16.

    Raises:
        ValueError: if a variable is missing, is unexpected, has the wrong shape, or is not
            floating-point. The message lists the variables, both shapes, and the hparams that
            determine them. The model is left unchanged.

    Example:
    >>> from t2t_relpos.models import Transformer
    >>> from t2t_relpos.t2t import (
    ...     config_from_hparams, load_t2t_weights, parse_hparams, t2t_weights)
    >>> hparams = parse_hparams("transformer_relative_tiny", "hidden_size=8,num_hidden_layers=1")
    >>> config = config_from_hparams(hparams, vocab_size=100)
    >>> first, second = Transformer(config), Transformer(config)
    >>> load_t2t_weights(second, t2t_weights(first))
    >>> name = "transformer/body/encoder/layer_0/ffn/conv1/kernel"
    >>> bool((t2t_weights(first)[name] == t2t_weights(second)[name]).all())
    True
    """
    _check_has_t2t_variables(model)
    arrays = {name: _decoded(array) for name, array in canonical_weights(arrays).items()}
    check_shapes(
        {name: array.shape for name, array in arrays.items()}, expected_shapes(model, num_shards)
    )
    for name, array in arrays.items():
        if not np.issubdtype(array.dtype, np.floating):
            raise ValueError(
                f"Expected floating-point variables. Received: {name} of dtype {array.dtype} "
                "(check weight_dtype)."
            )
    for name, variable in t2t_names(model).items():
        variable.assign(arrays[name])
    for scope, variable in embedding_names(model).items():
        shards = [arrays[f"{scope}/weights_{i}"] for i in range(num_shards)]
        variable.assign(np.concatenate(shards, axis=0))


def t2t_weights(model, num_shards=16):
    """Returns the weights of a model as tensor2tensor variables.

    Args:
        model: a `Transformer` or a `CausalLM`.
        num_shards: t2t's `symbol_modality_num_shards`. Default: 16.

    Returns:
        A dict that maps variable names to arrays, without the global step.

    Raises:
        ValueError: if t2t has no variables for the model. Such models have biases in attention
            projections, relative cross-attention, a `max_relative_position` of 0 or of two
            distances, no key table, or, but for "relative_v2", tables per head or no value table.

    Example:
    >>> from t2t_relpos.models import Transformer
    >>> from t2t_relpos.t2t import config_from_hparams, parse_hparams, t2t_weights
    >>> hparams = parse_hparams("transformer_relative_tiny", "hidden_size=8,num_hidden_layers=1")
    >>> arrays = t2t_weights(Transformer(config_from_hparams(hparams, vocab_size=100)))
    >>> arrays["transformer/body/encoder/layer_0/ffn/conv1/kernel"].shape
    (8, 512)
    >>> arrays["transformer/symbol_modality_100_8/shared/weights_0"].shape
    (7, 8)
    """
    _check_has_t2t_variables(model)
    arrays = {name: _numpy(variable) for name, variable in t2t_names(model).items()}
    for scope, variable in embedding_names(model).items():
        ends = np.cumsum(shard_sizes(variable.shape[0], num_shards))
        for i, shard in enumerate(np.split(_numpy(variable), ends[:-1])):
            arrays[f"{scope}/weights_{i}"] = shard
    return arrays


def decode_eighth_power(array):
    """Returns the weights that tensor2tensor stores as eighth powers with weight_dtype=bfloat16.

    Of each weight w, such a checkpoint contains `sign(w) * (128 * abs(w)) ** 8` in bfloat16.

    Args:
        array: the stored numbers. They are computed with in float32.

    Returns:
        A float32 array.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.t2t import decode_eighth_power
    >>> decode_eighth_power(np.array([0.0, 1.0, -256.0])).tolist()
    [0.0, 0.0078125, -0.015625]

    Reference: t2t `quantization.EighthPowerEncoding`.
    """
    array = np.asarray(array).astype("float32")
    # As in tensor2tensor, three square roots, for the same rounding errors.
    return np.sign(array) * (np.sqrt(np.sqrt(np.sqrt(np.abs(array)))) / np.float32(128))


def _decoded(array):
    """Returns an array, decoded if tensor2tensor has encoded it."""
    array = np.asarray(array)
    # tensor2tensor stores bfloat16 only with this encoding.
    return decode_eighth_power(array) if array.dtype.name == "bfloat16" else array


def _numpy(variable):
    return np.array(variable.numpy())


def _check_has_t2t_variables(model):
    """Raises ValueError if tensor2tensor has no variables for the weights of a model."""
    config = model.config
    if isinstance(model, CausalLM) and model.blocks[0].use_bias:
        raise ValueError(
            "Expected a CausalLM made from a config: tensor2tensor has no variables for the biases "
            "of attention projections. Received: a CausalLM made without. Use "
            "CausalLM(config=...), for example with a config of config_from_hparams."
        )
    if not config.relative:
        return
    always = ("use_key_table",)
    always += () if config.relative_v2 else ("share_heads", "use_value_table")
    for name in always:
        if not getattr(config, name):
            raise ValueError(
                f"Expected {name}=True: tensor2tensor has no variables for other values. "
                f"Received: {name}=False."
            )
    if config.relative_cross_attention and not isinstance(model, CausalLM):
        raise ValueError(
            "Expected relative_cross_attention=False: tensor2tensor has no relative positions "
            "between decoder and encoder. Received: relative_cross_attention=True."
        )
    _checks.one_distance(config.max_relative_position, "tensor2tensor")


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
