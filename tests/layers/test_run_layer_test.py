"""Runs Keras's general test of layers, `run_layer_test`, on every layer.

The fast tests run it on one variant of each layer. `make test-peers` runs it on all variants of the
arguments, and trains the layers that have one input.
"""

import inspect
import os

import keras
import numpy as np
import pytest
from keras.src.testing import TestCase
from layer_cases import BATCH, INPUTS, LAYERS, dtype_of, random_inputs

ALL_VARIANTS = bool(os.environ.get("ALL_ARGUMENT_VARIANTS"))
SIZES = {"T": 3, "S": 5, "L": 7, "H": 2, "W": 3}
# A residual has a function as an argument. Keras's test passes tensors only.
VARIANTS = [name for name in LAYERS if not name.startswith("residual")]
# The last variant of each class.
ONE_EACH = {type(LAYERS[name][0].make()): name for name in VARIANTS}.values()


@pytest.mark.parametrize("name", VARIANTS if ALL_VARIANTS else ONE_EACH)
@pytest.mark.filterwarnings("ignore")
def test_run_layer_test(name):
    case, settings = LAYERS[name]
    names = case.inputs.split()
    arguments = list(inspect.signature(case.make().call).parameters)
    inputs = dict(zip(arguments, names)) | {
        argument: value for argument, value in case.others.items() if argument == "relations"
    }
    fixed = {a: n for a, n in case.others.items() if a not in inputs}
    shapes = {
        f"{a}_shape": (BATCH, *(SIZES.get(x, x) for x in INPUTS[n])) for a, n in inputs.items()
    }
    dtypes = {f"{a}_shape": dtype_of(n) for a, n in inputs.items()}
    if len(inputs) == 1:
        [shapes], [dtypes] = shapes.values(), dtypes.values()
    arrays = random_inputs(fixed.values(), np.random.default_rng(0), SIZES)
    TestCase().run_layer_test(
        case.make,
        settings,
        input_shape=shapes,
        input_dtype=dtypes,
        call_kwargs={argument: arrays[name] for argument, name in fixed.items()},
        run_training_check=ALL_VARIANTS and len(inputs) == 1,
    )


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="Keras's test does this elsewhere")
@pytest.mark.parametrize("name", VARIANTS if ALL_VARIANTS else ONE_EACH)
def test_mixed_precision(name):
    """Compares dtypes of outputs and specs, which Keras's test does not on PyTorch without CUDA."""
    case, settings = LAYERS[name]
    arrays = random_inputs(case.input_names(), np.random.default_rng(0), SIZES)
    layer = case.make(**settings, dtype="mixed_float16")
    specs = {
        name: keras.KerasTensor(x.shape, "float16" if x.dtype == "float32" else str(x.dtype))
        for name, x in arrays.items()
    }
    outputs = case.call(layer, arrays)
    spec = case.call(layer.compute_output_spec, specs)
    assert keras.backend.standardize_dtype(outputs.dtype) == spec.dtype == "float16"
    assert tuple(outputs.shape) == spec.shape
    assert {v.dtype for v in layer.weights} <= {"float32"}
