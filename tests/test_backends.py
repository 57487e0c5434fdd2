"""Compares backends, and tests JAX transformations: jit, grad and several devices."""

import importlib.util
import pathlib

import keras
import numpy as np
import pytest
from backends.outputs import outputs_of
from layer_cases import CASES, INPUTS, random_inputs, symbolic_inputs
from small_transformers import small_config
from subprocesses import environment, run_python

from t2t_relpos.decoding import beam_search
from t2t_relpos.models import Transformer

PROGRAMS = pathlib.Path(__file__).parent / "support" / "backends"
BACKEND = keras.backend.backend()
on_jax = pytest.mark.skipif(BACKEND != "jax", reason="requires JAX")
on_other_backends = pytest.mark.skipif(
    BACKEND == "tensorflow", reason="requires a backend other than TensorFlow"
)
INPUT_NAMES = [name for name in INPUTS if not name.endswith("_mask")]
# The residual can't be saved, because its sublayer is a function.
SAVED_LAYERS = [name for name in CASES if name != "residual"]


def make_transformer(**settings):
    return Transformer(small_config(**settings))


def random_batch(rng):
    shapes = {"inputs": (3, 5), "targets": (3, 7)}
    return {name: rng.integers(1, 13, shape).astype("int32") for name, shape in shapes.items()}


def run(program, *arguments, **variables):
    """Runs a program of tests/support/backends in a separate process."""
    run_python(PROGRAMS / program, *arguments, env=environment(**variables))


@on_other_backends
@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="requires TensorFlow")
def test_models_equal_tensorflow(rng, tmp_path):
    symbols = symbolic_inputs(INPUT_NAMES)
    outputs = {name: CASES[name].call(CASES[name].make(), symbols) for name in SAVED_LAYERS}
    left_right = {"max_relative_position": (4, 1), "relative_cross_attention": True}
    post_norm = {"position": "sinusoidal", "normalize_first": False}
    models = {
        "left_right": (make_transformer(share_heads=False, **left_right), random_batch(rng)),
        "post_norm": (make_transformer(**post_norm), random_batch(rng)),
        "layers": (keras.Model(symbols, outputs), random_inputs(symbols, rng)),
    }
    for name, (model, inputs) in models.items():
        model.save(tmp_path / f"{name}.keras")
        np.savez(tmp_path / f"{name}_inputs.npz", **inputs)
    run("outputs.py", tmp_path, *models, KERAS_BACKEND="tensorflow")
    for name, (_, inputs) in models.items():
        expected = outputs_of(tmp_path / f"{name}.keras", inputs)
        with np.load(tmp_path / f"{name}_outputs.npz") as found:
            assert set(found) == set(expected)
            for key, array in expected.items():
                message = f"{name} {key}"
                np.testing.assert_allclose(found[key], array, rtol=1e-5, atol=1e-5, err_msg=message)


def assert_jit_and_grad(layers, inputs, rng):
    """Asserts that compiled outputs equal eager ones, and gradients equal finite differences.

    Args:
        layers: (layer, call) by name. `call(function, inputs)` calls the layer, or a function
            with the same signature.
        inputs: a dict of arrays.
        rng: generator for the cotangents and the directions of the differences.

    Returns:
        The gradients with respect to the trainable variables, by name.
    """
    import jax

    def values(variables):
        return [v.value for v in variables]

    eager = {name: call(layer, inputs) for name, (layer, call) in layers.items()}
    weights = {name: values(layer.trainable_variables) for name, (layer, _) in layers.items()}
    others = {name: values(layer.non_trainable_variables) for name, (layer, _) in layers.items()}
    cotangents = {name: rng.normal(size=x.shape).astype("float32") for name, x in eager.items()}

    def output(name, weights, inputs):
        layer, call = layers[name]
        stateless = lambda *args, **kw: layer.stateless_call(weights, others[name], *args, **kw)[0]
        return call(stateless, inputs)

    @jax.jit
    def outputs_losses_and_gradients(weights, inputs):
        def total(weights):
            outputs = {name: output(name, each, inputs) for name, each in weights.items()}
            losses = {name: (x * cotangents[name]).sum() for name, x in outputs.items()}
            return sum(losses.values()), (outputs, losses)

        gradients, (outputs, losses) = jax.grad(total, has_aux=True)(weights)
        return outputs, losses, gradients

    outputs, _, gradients = outputs_losses_and_gradients(weights, inputs)
    directions = {
        name: [rng.normal(size=w.shape).astype("float32") for w in each]
        for name, each in weights.items()
    }
    steps = {
        name: 3e-3 / np.sqrt(sum((d**2).sum() for d in each) + 1e-9)
        for name, each in directions.items()
    }

    def losses_after(sign):
        moved = {
            name: [w + sign * steps[name] * d for w, d in zip(each, directions[name], strict=True)]
            for name, each in weights.items()
        }
        return outputs_losses_and_gradients(moved, inputs)[1]

    before, after = losses_after(-1), losses_after(1)
    for name, found in outputs.items():
        np.testing.assert_allclose(found, eager[name], rtol=1e-5, atol=1e-5, err_msg=name)
        pairs = zip(gradients[name], directions[name], strict=True)
        np.testing.assert_allclose(
            (after[name] - before[name]) / (2 * steps[name]),
            sum((g * d).sum() for g, d in pairs),
            rtol=0.02,
            atol=0.02,
            err_msg=name,
        )
    return gradients


@on_jax
def test_models_support_jit_and_grad(rng):
    arrays = random_inputs(INPUT_NAMES, rng)
    models = {name: (case.make(), case.call) for name, case in CASES.items()}
    # Finite differences across the kinks of ReLU would differ from gradients.
    for name in ("feed_forward", "encoder", "decoder", "decoder_only"):
        models[name] = (CASES[name].make(activation="silu"), CASES[name].call)
    models["transformer"] = (make_transformer(), lambda function, inputs: function(inputs))
    gradients = assert_jit_and_grad(models, arrays | random_batch(rng), rng)
    assert [name for name, each in gradients.items() if not each] == ["sinusoids"]


@on_jax
def test_training_on_two_devices_equals_one_device(tmp_path):
    flags = "--xla_force_host_platform_device_count=2"
    run("data_parallel.py", tmp_path, KERAS_BACKEND="jax", XLA_FLAGS=flags)
    one, two = (dict(np.load(tmp_path / f"{count}.npz")) for count in (1, 2))
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
    assert traced == [(3, 5)]
    expected = beam_search(other.step, other.encode(source, 7), 3, 7, beam_size=3, num_results=2)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


@on_other_backends
def test_library_runs_without_tensorflow(tmp_path):
    run("without_tensorflow.py", tmp_path / "model.keras", KERAS_BACKEND=BACKEND)
