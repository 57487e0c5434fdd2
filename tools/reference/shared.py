"""The folder of the recorded files, their formats, and the import of tensor2tensor."""

import json
import os
import pathlib
import sys
import types

import numpy as np

FOLDER = pathlib.Path(__file__).parents[2] / "tests" / "reference"


def save_arrays(name, arrays):
    """Writes `NAME.npz`, which contains arrays only, no pickles."""
    path = FOLDER / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)
    print(f"{name}: {path.stat().st_size} bytes", flush=True)


def write_lists(name, lists):
    """Writes `NAME.json` in ASCII with one entry of a list per line."""
    parts = (
        f"{json.dumps(key)}: [\n" + ",\n".join(map(json.dumps, entries)) + "\n]"
        for key, entries in lists.items()
    )
    text = "{\n" + ",\n".join(parts) + "\n}\n"
    (FOLDER / f"{name}.json").write_text(text, encoding="ascii")
    print(", ".join(f"{len(entries)} {key}" for key, entries in lists.items()), flush=True)


def hide_models():
    """Replaces `tensor2tensor.models` by an empty package with the same modules.

    Its `__init__` imports models whose dependencies can no longer be installed.
    """
    import tensor2tensor

    models = types.ModuleType("tensor2tensor.models")
    models.__path__ = [os.path.join(tensor2tensor.__path__[0], "models")]
    sys.modules["tensor2tensor.models"] = models
