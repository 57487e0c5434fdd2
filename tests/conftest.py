"""What all tests share."""

import importlib
import os
import pathlib
import sys
from typing import NamedTuple

# The examples are not installed.
sys.path.append(str(pathlib.Path(__file__).parents[1]))
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from absl import flags  # noqa: E402


@pytest.fixture(autouse=True)
def seeded():
    """Every test starts from the same seed, in float32."""
    keras.utils.set_random_seed(20180401)
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def rng():
    """Random inputs, the same for every run."""
    return np.random.default_rng(20180401)


class Program:
    """Runs an absl program in this process: `program("--flag=value", ...)`.

    Args:
        module: module of the program, with `define_flags` and `main`.
    """

    def __init__(self, module):
        self.module = module

    def __call__(self, *arguments, **flag_values):
        arguments = [*map(str, arguments), *(f"--{k}={v}" for k, v in flag_values.items())]
        values = flags.FlagValues()
        self.module.define_flags(values)
        self.module.main(values([self.module.__name__, *arguments]), values)

    def fails(self, message, *arguments, **flag_values):
        """Checks that the program exits with a message that matches the regular expression."""
        prefix = self.module.__name__.removesuffix(".__main__").removeprefix("examples.")
        with pytest.raises(SystemExit, match=f"{prefix}: {message}"):
            self(*arguments, **flag_values)


@pytest.fixture(scope="session")
def program():
    """`program(module)`: a `Program`."""
    return Program


@pytest.fixture(scope="session")
def import_reference():
    """`import_reference("compare_models")`: a module that lies next to the recordings."""
    folder = str(pathlib.Path(__file__).parent / "reference")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module


@pytest.fixture(scope="session")
def output_and_gradients(import_reference):
    """`output_and_gradients(function, inputs, cotangent)` of tests/reference/gradients.py."""
    return import_reference("gradients").output_and_gradients


@pytest.fixture(scope="session")
def precision():
    """The widest dtype that Keras multiplies in, and the error of some sums and products in it."""
    if keras.backend.backend() == "tensorflow":
        return Precision("float64", 1e-13)
    return Precision("float32", 1e-5)


class Precision(NamedTuple):
    """A dtype and an absolute tolerance."""

    dtype: str
    atol: float


@pytest.fixture(scope="session", autouse=True)
def arrays_of_tensors():
    """NumPy reads tensors of every backend: PyTorch's, too, that have gradients."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        if keras.backend.backend() == "torch":
            import torch

            read = torch.Tensor.__array__
            detached = lambda tensor, *args, **kwargs: read(tensor.detach(), *args, **kwargs)
            monkeypatch.setattr(torch.Tensor, "__array__", detached)
        yield


@pytest.fixture
def check_layer():
    """What every layer has to pass: see `_check_layer`."""
    return _check_layer


def _check_layer(make, inputs, call=None, output_shape=None):
    """Serialises, builds, calls (symbolic, eager, in a graph), fits, and runs in bfloat16.

    Args:
        make: makes the layer, taking the keyword `dtype`.
        inputs: a list of arrays.
        call: `call(layer, *inputs)`; default the plain call.
        output_shape: expected shape of the output.
    """
    call = call or (lambda layer, *xs: layer(*xs))
    layer = make(dtype="float32")
    eager = keras.ops.convert_to_numpy(call(layer, *inputs))
    assert np.isfinite(eager).all()
    if output_shape is not None:
        assert eager.shape == output_shape

    _check_config(layer)
    symbols = [keras.Input(x.shape[1:], dtype=str(x.dtype)) for x in inputs]
    model = keras.Model(symbols, call(layer, *symbols))
    assert model.output.shape[1:] == eager.shape[1:]
    np.testing.assert_allclose(model.predict(inputs, verbose=0), eager, rtol=1e-5, atol=1e-5)

    if layer.trainable_variables:
        before = [keras.ops.convert_to_numpy(v) for v in layer.trainable_variables]
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.fit(inputs, np.ones_like(eager), epochs=1, verbose=0)
        changed = [
            not np.array_equal(b, keras.ops.convert_to_numpy(v))
            for b, v in zip(before, layer.trainable_variables)
        ]
        assert any(changed)

    half = make(dtype="mixed_bfloat16")
    low = call(half, *inputs)
    assert keras.backend.standardize_dtype(low.dtype) == "bfloat16"
    assert all(v.dtype == "float32" for v in half.trainable_variables)
    if layer.trainable_variables:
        # The same weights as the layer had before it was fitted.
        for variable, value in zip(half.trainable_variables, before):
            variable.assign(value)
        low = call(half, *inputs)
    low = keras.ops.convert_to_numpy(keras.ops.cast(low, "float32"))
    scale = np.abs(eager).max()
    np.testing.assert_allclose(low, eager, atol=0.05 * scale)


def _check_config(layer):
    config = layer.get_config()
    copy = layer.__class__.from_config(config)
    assert copy.get_config() == config
    through_json = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert through_json.get_config() == config
