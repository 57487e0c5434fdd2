"""Records the Transformer hparams sets of tensor2tensor 1.15.7.

    T2T_PYTHON tests/reference/record_hparams.py

Writes `hparams.json` in this folder, which maps set names to dicts of hparams.
"""

import json
import pathlib

import t2t_transformer

SETS = (
    "transformer_base",
    "transformer_base_v1",
    "transformer_big",
    "transformer_relative",
    "transformer_relative_big",
    "transformer_relative_tiny",
    "transformer_tiny",
)


def main():
    sets = {name: json.loads(t2t_transformer.registry.hparams(name).to_json()) for name in SETS}
    path = pathlib.Path(__file__).parent / "hparams.json"
    path.write_text(json.dumps(sets, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
