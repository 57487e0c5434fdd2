"""Tests of computations that XLA compiles for each replica.

The replica of most tests is the only one. Programs on two replicas run in a separate process.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from subprocesses import ROOT, environment, run_python

from trainer.training import compiled_steps
from trainer.training.compiled_steps import CompiledOnReplicas, xla_error


@pytest.fixture
def strategy():
    return tf.distribute.MirroredStrategy(["CPU:0"])


def test_each_shape_is_traced_for_xla_with_known_lengths(strategy):
    traced = []

    @CompiledOnReplicas
    def double(batch, factor):
        traced.append(batch["inputs"].shape.as_list())
        return 2 * batch["inputs"], factor * 3

    @tf.function
    def step(batch):
        return strategy.run(double, args=(batch, tf.constant(5)))

    for length in (3, 2, 3):
        doubled, number = step({"inputs": tf.fill([2, length], 7)})
        assert int(number) == 15
        np.testing.assert_array_equal(doubled, np.full((2, length), 14))
    assert traced == [[2, 3], [2, 2]]
    with strategy.scope():
        strategy.run(lambda: traced.append(double.current_function()))
    hlo = traced[-1].experimental_get_compiler_ir({"inputs": tf.ones([2, 2])}, tf.constant(1))
    assert "ENTRY" in hlo()


def test_xla_error_of_a_device_that_compiles_is_none(strategy):
    assert xla_error(strategy) is None


def failing(message):
    def compile_and_fail(*args, **settings):
        raise tf.errors.InternalError(None, None, message)

    return compile_and_fail


def test_xla_error_is_one_line(strategy, monkeypatch):
    message = "libdevice not found\n\t [[{{node while}}]]\n [Op:__inference_step_7]"
    monkeypatch.setattr(CompiledOnReplicas, "current_function", failing(message))
    assert xla_error(strategy) == "InternalError: libdevice not found"
    monkeypatch.setattr(CompiledOnReplicas, "current_function", lambda self: {}["a\nb"])
    assert xla_error(strategy) == r"KeyError: 'a\nb'"


def test_xla_error_reports_wrong_results(strategy, monkeypatch):
    monkeypatch.setattr(compiled_steps, "sum_over_replicas", lambda gradient: gradient + 1)
    assert xla_error(strategy) == "wrong results: [[3.0, 3.0, 3.0, 3.0]], not 2.0"


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    """Returns what the program xla_replicas.py prints."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests/support")])
    program = Path(__file__).parent / "xla_replicas.py"
    # Optimized code takes longer to compile than it saves.
    variables = environment(PYTHONPATH=paths, XLA_FLAGS="--xla_backend_optimization_level=0")
    return json.loads(run_python(program, env=variables).stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "rtol"), [("Transformer", 2e-6), ("micro-batches", 2e-6), ("float16", 4e-3)]
)
def test_steps_equal_those_of_one_device_without_xla(on_two, case, rtol):
    found = on_two[case]
    assert len(found["xla"]["loss"]) == 4
    for name in ("loss", "gradient_norm", "tokens"):
        np.testing.assert_allclose(found["xla"][name], found["one"][name], rtol=rtol)
    assert found["xla"]["loss"][-1] < found["xla"]["loss"][0]


@pytest.mark.slow
def test_each_replica_has_a_program_for_each_shape_with_known_lengths(on_two):
    """Without XLA, Keras traces one function with unknown lengths."""
    assert on_two["xla_error"] is None
    found = on_two["micro-batches"]
    assert found["xla"]["programs"] == [2, 4] and found["traces"] == [2, 2]
    assert min(found["xla"]["compile_seconds"]) > 0
    assert sorted(map(tuple, on_two["Transformer"]["calls"])) == [(True, 5, 5), (True, 8, 8)]


@pytest.mark.slow
def test_dropout_states_are_equal_on_both_replicas(on_two):
    """A program draws from a stream of its replica. The states advance as without XLA."""
    found = on_two["dropout in bfloat16"]
    [(first, second)] = found["states"]
    assert first == second and first[1] == 4  # One draw per step, in any number of micro-batches.
    losses = [found[name]["loss"] for name in ("xla", "one")]
    assert all(loss[-1] < loss[0] for loss in losses)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["Transformer", "float16", "dropout in bfloat16"])
def test_resources_of_a_program_are_on_the_device_of_its_replica(on_two, case):
    """In a program of one GPU, a variable of another one is an error of TensorFlow."""
    found = on_two[case]
    assert [device[-5:] for device in found["devices"]] == ["CPU:0", "CPU:1"]
    for device, programs in zip(found["devices"], found["resources"], strict=True):
        assert len(programs) == 2  # shapes
        for resources in programs:
            assert len(resources) == found["variables"]
            assert set(resources) == {device}
