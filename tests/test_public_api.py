"""Tests of the public API: names and signatures.

`KERAS_BACKEND=torch python tests/test_public_api.py > tests/public_api.txt` records names and
signatures. Modules of PyTorch can be imported on that backend only.
"""

import importlib
import inspect
import sys
from pathlib import Path

import keras
import pytest

OF_TORCH = ".integrations.torch"
OF_TRANSFORMERS = ".integrations.transformers"
PACKAGES = ("", ".attention", ".layers", ".models", ".decoding", ".t2t", OF_TRANSFORMERS)
if keras.backend.backend() == "torch":
    PACKAGES += (OF_TORCH,)
RECORD = Path(__file__).parent / "public_api.txt"


def members():
    """Yields (dotted name, object) of all public members."""
    for package in PACKAGES:
        module = importlib.import_module(f"t2t_relpos{package}")
        for name in module.__all__:
            yield f"{module.__name__}.{name}", getattr(module, name)


def lines():
    """Returns one line for each public name, with the signature of callables."""
    found = []
    for name, member in members():
        found.append(f"{name}{inspect.signature(member)}" if callable(member) else name)
        found += [f"{name}.{m}{inspect.signature(function)}" for m, function in methods(member)]
    return found


def methods(member):
    """Returns (name, function) of the public methods of a class that this package defines."""
    if not inspect.isclass(member):
        return []
    return [
        (name, function)
        for name, function in inspect.getmembers(member, callable)
        if not name.startswith("_") and getattr(function, "__module__", "").startswith("t2t_relpos")
    ]


def test_names_and_signatures_equal_the_record():
    recorded = RECORD.read_text().splitlines()
    if OF_TORCH not in PACKAGES:
        recorded = [line for line in recorded if not line.startswith(f"t2t_relpos{OF_TORCH}.")]
    assert lines() == recorded


@pytest.mark.parametrize("package", PACKAGES)
def test_all_lists_every_public_name(package):
    module = importlib.import_module(f"t2t_relpos{package}")
    if package in (OF_TORCH, OF_TRANSFORMERS):
        public = {n for n, x in vars(module).items() if callable(x) and defines(module, x)}
    else:
        # Names of the package itself are imported when they are used.
        [getattr(module, name) for name in module.__all__]
        public = {name for name, member in vars(module).items() if not inspect.ismodule(member)}
        public -= {"TYPE_CHECKING"}
    assert set(module.__all__) == {name for name in public if not name.startswith("_")}


def defines(module, member):
    return member.__module__ in (module.__name__, "t2t_relpos.integrations.families")


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines()) + "\n")
