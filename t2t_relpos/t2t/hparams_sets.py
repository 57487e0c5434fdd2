"""The Transformer hparams sets of tensor2tensor, and those of Magenta's score2perf.

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

_DATA = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text("utf-8"))
_DIFFERENCES = _DATA.pop("sets")

UNSUPPORTED_UNLESS = _DATA["unsupported_unless"]
DEFAULTS = {key: value for group in _DATA.values() for key, value in group.items()}

# Differences of each set from transformer_base.
SETS = {"transformer_base": {}}
for _name, (_base, _differences) in _DIFFERENCES.items():
    SETS[_name] = {**SETS[_base], **_differences}
