"""Tests of Adam with one op per variable. test_replicas.py tests it on several replicas."""

import keras
import pytest
import tensorflow as tf
from comparisons import assert_all_close

from trainer.training.optimizer import FusedAdam

SETTINGS = {"learning_rate": 0.1, "beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}


def train(kind, weights, gradients):
    """Returns weights, and optimizer variables by path, after updates with several gradients."""
    variables = [keras.Variable(x, name=f"weight_{i}") for i, x in enumerate(weights)]
    optimizer = kind(**SETTINGS, name="adam")
    optimizer.build(variables)
    step = tf.function(lambda *of_step: optimizer.apply(of_step, variables), autograph=False)
    for of_step in gradients:
        step(*map(tf.constant, of_step))
    return [x.numpy() for x in variables], {x.path: x.numpy() for x in optimizer.variables}


def test_updates_and_variables_equal_keras(rng):
    shapes = (3, 5), (7,), ()
    weights, *gradients = (
        [rng.normal(size=shape).astype("float32") for shape in shapes] for _ in range(5)
    )
    ours, our_state = train(FusedAdam, weights, gradients)
    theirs, their_state = train(keras.optimizers.Adam, weights, gradients)
    assert list(our_state) == list(their_state)
    tolerances = {"rtol": 2e-6, "atol": 2e-6}
    assert_all_close([*ours, *our_state.values()], [*theirs, *their_state.values()], **tolerances)


def test_from_config_restores_the_settings():
    again = FusedAdam.from_config(FusedAdam(**SETTINGS).get_config())
    assert {name: again.get_config()[name] for name in SETTINGS} == pytest.approx(SETTINGS)
