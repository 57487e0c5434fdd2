"""Tests of learning rates, Adam and loss scales. test_replicas.py has those on several replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from comparisons import assert_all_close

from trainer.training.optimizer import FusedAdam, LossScale, NoamSchedule

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


@pytest.mark.parametrize("step", [0, 1, 1000, 3999, 4000, 4001, 100_000])
def test_noam_schedule_equals_the_formula_of_the_paper(step):
    paper = 512**-0.5 * min(max(step, 1) ** -0.5, step * 4000**-1.5)
    once = NoamSchedule(512, 4000, multiplier=1.0)
    assert float(once(step)) == pytest.approx(paper, rel=1e-6)
    assert float(NoamSchedule(512, 4000)(step)) == pytest.approx(2 * paper, rel=1e-6)


def test_first_update_has_learning_rate_0():
    optimizer = keras.optimizers.SGD(NoamSchedule(4, 2))
    variable = keras.Variable([1.0, 5.0])
    optimizer.apply([np.ones(2, "float32")], [variable])
    np.testing.assert_array_equal(variable.value, [1.0, 5.0])
    optimizer.apply([np.ones(2, "float32")], [variable])
    expected = np.array([1.0, 5.0]) - 2 * 0.5 * 2**-0.5 * 4**-0.5
    np.testing.assert_allclose(variable.value, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("start", "finite", "expected"),
    [
        (LossScale.smallest, False, LossScale.smallest),
        (0.0, False, LossScale.smallest),
        (LossScale.largest, True, LossScale.largest),
        (np.inf, False, LossScale.largest),
    ],
)
def test_scale_stays_between_its_limits(start, finite, expected):
    variable, optimizer = keras.Variable([1.0]), keras.optimizers.SGD()
    optimizer.build([variable])
    loss_scale = LossScale(optimizer)
    loss_scale.growth_steps = 1
    loss_scale.scale.assign(start)
    loss_scale.apply([tf.zeros(1)], [variable], tf.constant(finite))
    assert float(loss_scale.scale.value) == expected
