"""tensor2tensor's hparams: a named set with overrides `k=v,…`, and its architecture."""

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
    """The hparams of a set, with some replaced.

    Args:
        hparams_set: a name, for instance "transformer_relative_tiny".
        overrides: `"key=value,key=value"` as t2t's `--hparams`.

    Returns:
        A dict of every key that t2t's Transformer knows.

    Raises:
        ValueError: an unknown set or key, or a value of another type than the
            key's.

    Example:
    >>> from t2t_relpos.t2t import parse_hparams
    >>> hparams = parse_hparams("transformer_relative_tiny", "hidden_size=64,pos=timing")
    >>> hparams["hidden_size"], hparams["pos"], hparams["max_relative_position"]
    (64, 'timing', 20)
    """
    if hparams_set not in SETS:
        raise ValueError(
            f"Expected an hparams set out of {', '.join(sorted(SETS))}. "
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
    """`"a=1,b=x"` -> pairs; a comma inside a value belongs to it if no `key=` follows."""
    text = overrides.strip().rstrip(",")
    pairs = {}
    for part in re.split(r",(?=\s*\w+\s*=)", text) if text else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals):
            raise ValueError(
                f"Expected hparams as key=value,key=value. Received: {part!r} in {overrides!r}."
            )
        if key in pairs:
            raise ValueError(
                f"Expected every hparam once. Received: {key!r} twice in {overrides!r}."
            )
        pairs[key] = value
    return pairs.items()


def _value(key, text):
    """`text` as a value of the type that the key's default has."""
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
        # "1.0" is no int, "1" is a float: as tensor2tensor reads them.
        if isinstance(number, (int, type(default))):
            return type(default)(number)
    elif isinstance(default, str):
        return text
    raise ValueError(
        f"Expected {key} to be of the type {type(default).__name__}. Received: {key}={text}."
    )


def _number(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def config_from_hparams(hparams, vocab_size, target_space_id=0):
    """The architecture that hparams describe.

    Args:
        hparams: as `parse_hparams` returns them.
        vocab_size: V, ids of the vocabulary, padding and end included.
        target_space_id: row of the target space embedding that is added to the
            encoder's inputs; 0 is t2t's for plain text problems.

    Returns:
        A `TransformerConfig`.

    Raises:
        ValueError: an hparam that would need what does not exist here; its name
            and the values that do exist are in the text.

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
        raise _unsupported(
            "max_relative_position", hparams["max_relative_position"], ["at least 1"]
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
        f"Expected {key} to be {' or '.join(map(repr, supported))}: nothing else of tensor2tensor "
        f"is supported there. Received: {value!r}."
    )


def _did_you_mean(word, words):
    near = difflib.get_close_matches(word, words, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
