"""Compares backends, and tests JAX transformations: jit, grad and several devices."""

import importlib.util
import pathlib

import keras
import numpy as np
import pytest
from backends.outputs import outputs_of
from layer_cases import CASES, random_inputs, symbolic_inputs
from small_transformers import small_config
from subprocesses import environment, run_python

from t2t_relpos import layers
from t2t_relpos.decoding import beam_search
from t2t_relpos.models import Transformer

PROGRAMS = pathlib.Path(__file__).parent / "support" / "backends"
BACKENDS = ("tensorflow", "jax", "torch")
on_other_backends = pytest.mark.parametrize(
    "backend", [b for b in BACKENDS if b != keras.backend.backend()]
)
on_jax = pytest.mark.skipif(keras.backend.backend() != "jax", reason="requires JAX")

# The output of the position embedding has no batch axis. The residual can't be saved, because its
# sublayer is a function.
MODEL_LAYERS = [name for name in CASES if name not in ("position embedding", "residual")]


def make_transformer(**settings):
    return Transformer(small_config(num_encoder_layers=2, num_decoder_layers=2, **settings))


def random_batch(rng):
    shapes = {"inputs": (3, 5), "targets": (3, 7)}
    return {name: rng.integers(1, 13, shape).astype("int32") for name, shape in shapes.items()}


def test_cases_contain_all_layer_classes():
    classes = {
        value
        for value in vars(layers).values()
        if isinstance(value, type) and issubclass(value, keras.Layer)
    }
    assert {type(case.make()) for case in CASES.values()} == classes


@pytest.mark.parametrize("name", MODEL_LAYERS)
def test_layers_support_unknown_lengths_and_saving(name, rng, tmp_path):
    case = CASES[name]
    layer, symbols = case.make(dropout=0.1), symbolic_inputs(case.input_names())
    arrays = random_inputs(symbols, rng)
    model = keras.Model(symbols, case.call(layer, symbols))
    assert set(model.output.shape[:-1]) == {None}
    expected = case.call(layer, arrays)
    np.testing.assert_allclose(model.predict(arrays, verbose=0), expected, atol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(arrays, verbose=0), expected, atol=1e-5)


def run(program, *arguments, **variables):
    """Runs a program of tests/support/backends in a separate process."""
    run_python(PROGRAMS / program, *arguments, env=environment(**variables))


@pytest.fixture
def assert_equal_on_backend(tmp_path):
    def check(backend, model, inputs):
        if importlib.util.find_spec(backend) is None:
            pytest.skip(f"{backend} is not installed")
        paths = [tmp_path / name for name in ("model.keras", "inputs.npz", "outputs.npz")]
        model.save(paths[0])
        np.savez(paths[1], **inputs)
        run("outputs.py", *paths, KERAS_BACKEND=backend)
        expected = outputs_of(paths[0], inputs)
        with np.load(paths[2]) as outputs:
            assert set(outputs) == set(expected)
            for name, array in expected.items():
                np.testing.assert_allclose(outputs[name], array, rtol=1e-5, atol=1e-5, err_msg=name)

    return check


@on_other_backends
@pytest.mark.parametrize(
    "settings", [{}, {"position": "sinusoidal", "normalize_first": False}], ids=str
)
def test_transformer_equals_other_backends(settings, backend, rng, assert_equal_on_backend):
    model = make_transformer(share_heads=False, **settings)
    assert_equal_on_backend(backend, model, random_batch(rng))


@on_other_backends
def test_layers_equal_other_backends(backend, rng, assert_equal_on_backend):
    cases = [CASES[name] for name in MODEL_LAYERS]
    symbols = symbolic_inputs(sorted({name for case in cases for name in case.input_names()}))
    outputs = [case.call(case.make(), symbols) for case in cases]
    assert_equal_on_backend(backend, keras.Model(symbols, outputs), random_inputs(symbols, rng))


def assert_jit_and_grad(layer, call, inputs, rng):
    """Asserts that compiled outputs equal eager ones, and gradients equal finite differences.

    Args:
        layer: a layer or model.
        call: `call(function, inputs)` calls the layer, or a function with the same signature.
        inputs: a dict of arrays.
        rng: generator for the cotangent and the direction of the difference.

    Returns:
        The gradients with respect to the trainable variables.
    """
    import jax

    eager = call(layer, inputs)
    weights, others = (
        [v.value for v in vs] for vs in (layer.trainable_variables, layer.non_trainable_variables)
    )
    cotangent = rng.normal(size=eager.shape).astype("float32")

    @jax.jit
    def outputs(weights, inputs):
        return call(
            lambda *args, **kwargs: layer.stateless_call(weights, others, *args, **kwargs)[0],
            inputs,
        )

    @jax.jit
    def loss_and_gradients(weights, inputs):
        return jax.value_and_grad(lambda weights: (outputs(weights, inputs) * cotangent).sum())(
            weights
        )

    np.testing.assert_allclose(outputs(weights, inputs), eager, rtol=1e-5, atol=1e-5)
    _, gradients = loss_and_gradients(weights, inputs)
    direction = [rng.normal(size=w.shape).astype("float32") for w in weights]
    step = 1e-2 / np.sqrt(sum((d**2).sum() for d in direction) + 1e-9)
    before, after = (
        loss_and_gradients([w + sign * step * d for w, d in zip(weights, direction)], inputs)[0]
        for sign in (-1, 1)
    )
    slope = sum((g * d).sum() for g, d in zip(gradients, direction, strict=True))
    np.testing.assert_allclose((after - before) / (2 * step), slope, rtol=0.02, atol=0.02)
    return gradients


@on_jax
@pytest.mark.parametrize("name", CASES)
def test_layers_support_jit_and_grad(name, rng):
    case = CASES[name]
    arrays = random_inputs(case.input_names(), rng)
    gradients = assert_jit_and_grad(case.make(), case.call, arrays, rng)
    assert bool(gradients) == (name != "sinusoids")


@on_jax
def test_transformer_supports_jit_and_grad(rng):
    assert_jit_and_grad(
        make_transformer(), lambda function, inputs: function(inputs), random_batch(rng), rng
    )


@on_jax
def test_training_on_two_devices_equals_one_device(tmp_path):
    results = []
    for count in (1, 2):
        flags = f"--xla_force_host_platform_device_count={count}"
        run("data_parallel.py", tmp_path / f"{count}.npz", KERAS_BACKEND="jax", XLA_FLAGS=flags)
        results.append(dict(np.load(tmp_path / f"{count}.npz")))
    one, two = results
    assert set(one.pop("devices")) == {1}
    assert set(two.pop("devices")) == {2}
    assert one["loss"][-1] < 0.9 * one["loss"][0]
    for name, values in one.items():
        np.testing.assert_allclose(two[name], values, rtol=1e-5, atol=1e-5, err_msg=name)


@on_jax
def test_beam_search_under_jit_compiles_once(rng):
    import jax

    model, other = make_transformer(), make_transformer()
    traced = []

    @jax.jit
    def search(weights, source):
        traced.append(source.shape)
        with keras.StatelessScope(state_mapping=list(zip(model.variables, weights))):
            state = model.encode(source, 7)
            return beam_search(model.step, state, 3, 7, beam_size=3, num_results=2)

    for transformer in (model, other):
        source = random_batch(rng)["inputs"]
        found = search([v.value for v in transformer.variables], source)
        expected = beam_search(
            transformer.step, transformer.encode(source, 7), 3, 7, beam_size=3, num_results=2
        )
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_array_equal(found.lengths, expected.lengths)
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)
    assert traced == [(3, 5)]


@pytest.mark.skipif(
    keras.backend.backend() == "tensorflow", reason="requires a backend other than TensorFlow"
)
def test_library_runs_without_tensorflow(tmp_path):
    run("without_tensorflow.py", tmp_path / "model.keras", KERAS_BACKEND=keras.backend.backend())
