"""Records reference values in tests/reference, whose README.md describes the programs and the files.

    PYTHON tools/reference/record.py NAME [ARGUMENT …]

NAME is a module of this folder, which has the function `record(*arguments)`. PYTHON is that of
tensor2tensor's environment, and for `saved_models` that of the version that saves.
"""

import importlib
import os
import pathlib
import sys

NAMES = (
    *("attention", "bleu", "doubled_scopes", "hparams"),
    *("models", "saved_models", "subwords", "variants"),
)


def main(name="", *arguments):
    if name not in NAMES:
        sys.exit(f"Expected the name of a recorder: {', '.join(NAMES)}. Received: {name!r}.")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # oneDNN reorders float32 sums. Without it, recordings are reproducible bit for bit.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    # Last, so that PYTHONPATH selects the version that `saved_models` records.
    sys.path.append(str(pathlib.Path(__file__).parents[2]))
    importlib.import_module(name).record(*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
