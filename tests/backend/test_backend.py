"""Tests that the backends define the same names, and of the errors if a private API changes."""

import importlib.util
import inspect
import pkgutil

import keras
import pytest
from subprocesses import environment, run_python

from t2t_relpos import backend
from t2t_relpos.backend import keras_ops

WITHOUT_TENSORFLOW = """
import importlib, traceback
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *args: None if name == "tensorflow" else find(name, *args)
for name in ("attention", "decoding", "layers", "models", "t2t"):
    try:
        importlib.import_module(f"t2t_relpos.{name}")
    except ImportError:
        print(traceback.format_exc())
"""

NAME = keras.backend.backend()
of_backend = importlib.import_module(f"t2t_relpos.backend.{NAME}")


@pytest.mark.parametrize("name", of_backend.__all__)
def test_overrides_have_the_signature_of_the_default(name):
    default, override = getattr(keras_ops, name), getattr(of_backend, name)
    assert getattr(backend, name) is override
    if callable(default):
        assert inspect.signature(override) == inspect.signature(default)


def test_flash_kernels_have_the_same_functions():
    plain = importlib.import_module("plain_flash_kernel")
    if backend.flash_kernel is None:
        pytest.skip("This backend has no flash-attention kernel.")
    for name in ("has_masks", "forward", "backward"):
        signatures = (inspect.signature(getattr(m, name)) for m in (plain, backend.flash_kernel))
        assert len({tuple(each.parameters) for each in signatures}) == 1, name


def test_error_without_the_backend_is_short():
    """Without the traceback within Keras."""
    variables = {k: x for k, x in environment().items() if k != "KERAS_BACKEND"}
    errors = run_python("-c", WITHOUT_TENSORFLOW, env=variables).stdout.strip().split("\n\n")
    message = "ImportError: Expected the package tensorflow, the backend of Keras. Received: an env"
    assert len(errors) == 5
    for error in errors:
        assert error.startswith("Traceback") and error.count("\n") < 20
        assert error.splitlines()[-1].startswith(message) and error.endswith("torch.")


PRIVATE = {
    "tensorflow": [
        "tensorflow.python.ops.control_flow_util.GraphOrParentsInXlaContext",
        "keras.src.backend.tensorflow.trainer.TensorFlowTrainer._maybe_symbolic_build",
    ],
    "torch": ["keras.src.backend.torch.core.get_device"],
}


@pytest.mark.parametrize("path", PRIVATE.get(NAME, []))
def test_import_names_a_changed_function(path, monkeypatch):
    owner, _, name = path.rpartition(".")
    monkeypatch.delattr(pkgutil.resolve_name(owner), name)
    importer = "t2t_relpos.backend.torch_ops" if NAME == "torch" else of_backend.__name__
    spec = importlib.util.find_spec(importer)
    with pytest.raises(ImportError, match=r"is missing or different in .* Install a version of"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
