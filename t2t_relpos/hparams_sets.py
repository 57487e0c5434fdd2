"""The Transformer hparams sets of tensor2tensor, and those of Magenta's score2perf; their parser.

`hparams_sets.json` contains the values of transformer_base in four groups:

- `architecture`: read by `config_from_hparams`.
- `unsupported_unless`: selects features that are not supported. Only these values are accepted.
- `without_effect`: for example sampling, which belongs to `generate`, and the dtype of activations,
  which belongs to the dtype policy. Variables are float32 with each `activation_dtype`.
- `training`: without effect on inference. They are stored with the model for fine-tuning.

Every other set consists of the name of an earlier set, and the differences from it.
"""

import json
import pathlib
import re

from t2t_relpos._suggestions import did_you_mean

# The sets that are presets of the same names, with recipes in the trainer.
PRESET_SETS = (
    "transformer_base",
    "transformer_base_v1",
    "transformer_big",
    "transformer_tiny",
    "transformer_relative",
    "transformer_relative_tiny",
    "transformer_relative_big",
)
_NUMBER_OR_NONE = ("learning_rate_minimum",)

_DATA = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text("utf-8"))
_DIFFERENCES = _DATA.pop("sets")

UNSUPPORTED_UNLESS = _DATA["unsupported_unless"]
DEFAULTS = {key: value for group in _DATA.values() for key, value in group.items()}

# Differences of each set from transformer_base.
SETS = {"transformer_base": {}}
for _name, (_base, _differences) in _DIFFERENCES.items():
    SETS[_name] = {**SETS[_base], **_differences}


def parse_hparams(hparams_set, overrides=""):
    """Returns the hparams of a set, with overrides applied.

    Args:
        hparams_set: the name of a set in `SETS`: those of t2t's `models/transformer.py` and
            `models/research/lm_experiments.py`, and of Magenta's score2perf. For example
            "transformer_relative_tiny".
        overrides: `"key=value,key=value"`, as t2t's `--hparams`. Default: no overrides.

    Returns:
        A dict with every hparam of the set.

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
            f"Expected one of the hparams sets in t2t_relpos.t2t.SETS, such as "
            f"'transformer_relative'. Received: {hparams_set!r}.{did_you_mean(hparams_set, SETS)}"
        )
    hparams = {**DEFAULTS, **SETS[hparams_set]}
    for key, text in _split(overrides):
        if key not in hparams:
            raise ValueError(
                f"Expected the name of an hparam of {hparams_set}. "
                f"Received: {key!r}.{did_you_mean(key, hparams)}"
            )
        # The type is that of the default: some sets have an int where the default is a float.
        hparams[key] = _value(key, text, DEFAULTS.get(key, hparams[key]))
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


def _value(key, text, default):
    """Returns `text` converted to the type of the default."""
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
