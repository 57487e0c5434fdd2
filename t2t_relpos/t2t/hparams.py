"""Parses tensor2tensor hparams and converts them to a `TransformerConfig`."""

import difflib
import re

from t2t_relpos.models.config import TransformerConfig
from t2t_relpos.t2t.hparams_sets import DEFAULTS, SETS, UNSUPPORTED_UNLESS

_POSITIONS = {
    ("dot_product", "timing"): "sinusoidal",
    ("dot_product", "emb"): "learned",
    ("dot_product", None): "none",
    ("dot_product_relative", None): "relative",
    ("dot_product_relative", "timing"): "relative+sinusoidal",
}
_NUMBER_OR_NONE = ("learning_rate_minimum",)
_NORMALIZE_FIRST = {("n", "da"): True, ("none", "dan"): False}


def parse_hparams(hparams_set, overrides=""):
    """Returns the hparams of a set, with overrides applied.

    Args:
        hparams_set: the name of a set, for example "transformer_relative_tiny".
        overrides: `"key=value,key=value"`, as t2t's `--hparams`. Default: no overrides.

    Returns:
        A dict with every hparam of t2t's Transformer.

    Raises:
        ValueError: if the set or a key is unknown, or a value has the wrong type.

    Example:
    >>> from t2t_relpos.t2t import parse_hparams
    >>> hparams = parse_hparams("transformer_relative_tiny", "hidden_size=64,pos=timing")
    >>> hparams["hidden_size"], hparams["pos"], hparams["max_relative_position"]
    (64, 'timing', 20)
    """
    if hparams_set not in SETS:
        raise ValueError(
            f"Expected one of the hparams sets {', '.join(sorted(SETS))}. "
            f"Received: {hparams_set!r}.{_did_you_mean(hparams_set, SETS)}"
        )
    hparams = {**DEFAULTS, **SETS[hparams_set]}
    for key, text in _split(overrides):
        if key not in DEFAULTS:
            raise ValueError(
                "Expected the name of an hparam of tensor2tensor's Transformer. "
                f"Received: {key!r}.{_did_you_mean(key, DEFAULTS)}"
            )
        hparams[key] = _value(key, text)
    return hparams


def _split(overrides):
    """Returns the pairs of `"a=1,b=x"`. A comma not followed by `key=` is part of the value."""
    text = overrides.strip().rstrip(",")
    pairs = {}
    for part in re.split(r",(?=\s*\w+\s*=)", text) if text else []:
        key, equals, value = (text.strip() for text in part.partition("="))
        if not (key and equals):
            raise ValueError(
                f"Expected hparams as key=value,key=value. Received: {part!r} in {overrides!r}."
            )
        if key in pairs:
            raise ValueError(
                f"Expected each hparam at most once. Received: {key!r} twice in {overrides!r}."
            )
        pairs[key] = value
    return pairs.items()


def _value(key, text):
    """Returns `text` converted to the type of the key's default."""
    default = DEFAULTS[key]
    if (key == "pos" or default is None) and text.lower() in ("none", ""):
        return None
    if key in _NUMBER_OR_NONE:
        default = 0.0
    if isinstance(default, bool):
        known = {"true": True, "1": True, "false": False, "0": False}
        if text.lower() in known:
            return known[text.lower()]
    elif isinstance(default, (int, float)):
        number = _number(text)
        # As in tensor2tensor, "1.0" is not a valid int, but "1" is a valid float.
        if isinstance(number, (int, type(default))):
            return type(default)(number)
    elif isinstance(default, str):
        return text
    raise ValueError(
        f"Expected {key} to be of type {type(default).__name__}. Received: {key}={text}."
    )


def _number(text):
    for number_type in (int, float):
        try:
            return number_type(text)
        except ValueError:
            continue
    return None


def config_from_hparams(hparams, vocab_size, target_space_id=0):
    """Returns the architecture that hparams describe.

    Args:
        hparams: a dict as returned by `parse_hparams`.
        vocab_size: number of ids in the vocabulary, including padding and end of sentence.
        target_space_id: row of the target space embedding that is added to the encoder inputs.
            Default: 0, t2t's id of plain text problems.

    Returns:
        A `TransformerConfig`.

    Raises:
        ValueError: if an hparam requires an unsupported feature. The message names the hparam
            and the supported values.

    Example:
    >>> from t2t_relpos.t2t import config_from_hparams
    >>> from t2t_relpos.t2t import parse_hparams
    >>> config = config_from_hparams(parse_hparams("transformer_relative_tiny"), vocab_size=8000)
    >>> config.position, config.max_relative_position, config.hidden_dim
    ('relative', 20, 128)
    """
    for key, only in UNSUPPORTED_UNLESS.items():
        if hparams[key] != only:
            raise _unsupported(key, hparams[key], [only])
    position = (hparams["self_attention_type"], hparams["pos"])
    if position not in _POSITIONS:
        raise _unsupported("self_attention_type and pos", position, list(_POSITIONS))
    norm = (hparams["layer_preprocess_sequence"], hparams["layer_postprocess_sequence"])
    if norm not in _NORMALIZE_FIRST:
        raise _unsupported(
            "layer_preprocess_sequence and layer_postprocess_sequence", norm, list(_NORMALIZE_FIRST)
        )
    tied = hparams["shared_embedding_and_softmax_weights"]
    if hparams["shared_embedding"] and not tied:
        raise _unsupported("shared_embedding without shared softmax weights", True, [False])
    relative = hparams["self_attention_type"] == "dot_product_relative"
    if relative and hparams["max_relative_position"] <= 0:
        raise ValueError(
            f"Expected max_relative_position to be at least 1 with {position[0]!r}. "
            f"Received: {hparams['max_relative_position']!r}."
        )
    layers = hparams["num_hidden_layers"]
    return TransformerConfig(
        vocab_size=vocab_size,
        num_encoder_layers=hparams["num_encoder_layers"] or layers,
        num_decoder_layers=hparams["num_decoder_layers"] or layers,
        hidden_dim=hparams["hidden_size"],
        intermediate_dim=hparams["filter_size"],
        num_heads=hparams["num_heads"],
        position=_POSITIONS[position],
        max_relative_position=hparams["max_relative_position"],
        share_heads=True,
        normalize_first=_NORMALIZE_FIRST[norm],
        tie_embeddings=tied,
        dropout=hparams["layer_prepostprocess_dropout"],
        attention_dropout=hparams["attention_dropout"],
        activation_dropout=hparams["relu_dropout"],
        layer_norm_epsilon=hparams["norm_epsilon"],
        max_length=hparams["max_length"],
        target_space_id=target_space_id if hparams["use_target_space_embedding"] else None,
    )


def _unsupported(key, value, supported):
    return ValueError(
        f"Expected {key} to be {' or '.join(map(repr, supported))}. Other values are not "
        f"supported. Received: {value!r}."
    )


def _did_you_mean(word, words):
    matches = difflib.get_close_matches(word, words, n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""
