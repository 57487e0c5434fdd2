"""Tests of Adam with one op per variable. test_replicas.py tests it on several replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from comparisons import assert_all_close

from trainer.training.fused_adam import FusedAdam

SETTINGS = {"learning_rate": 0.1, "beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}


def train(optimizer, weights, gradients):
    """Returns weights and optimizer variables after updates with gradients `[steps, weights]`."""
    variables = [keras.Variable(x) for x in weights]
    optimizer.build(variables)
    step = tf.function(lambda *of_step: optimizer.apply(of_step, variables), autograph=False)
    for of_step in gradients:
        step(*(tf.constant(x) for x in of_step))
    return [x.numpy() for x in variables], [x.numpy() for x in optimizer.variables]


def test_updates_equal_keras(rng):
    shapes = (3, 5), (7,), ()
    weights = [rng.normal(size=shape).astype("float32") for shape in shapes]
    gradients = [[rng.normal(size=shape).astype("float32") for shape in shapes] for _ in range(4)]
    ours, our_state = train(FusedAdam(**SETTINGS), weights, gradients)
    theirs, their_state = train(keras.optimizers.Adam(**SETTINGS), weights, gradients)
    assert_all_close([*ours, *our_state], [*theirs, *their_state], rtol=2e-6, atol=2e-6)


def test_updates_equal_the_paper(rng):
    gradients = rng.normal(size=(4, 7)).astype("float32")
    (actual,), _ = train(FusedAdam(**SETTINGS), [np.ones(7, "float32")], gradients[:, None])
    weight, first, second = np.ones(7), np.zeros(7), np.zeros(7)
    for step, gradient in enumerate(gradients.astype("float64"), start=1):
        first, second = 0.9 * first + 0.1 * gradient, 0.98 * second + 0.02 * gradient**2
        rate = 0.1 * np.sqrt(1 - 0.98**step) / (1 - 0.9**step)
        weight -= rate * first / (np.sqrt(second) + 1e-9)
    np.testing.assert_allclose(actual, weight, rtol=0, atol=2e-6)


def test_variables_equal_those_of_keras(rng):
    names = []
    for kind in (FusedAdam, keras.optimizers.Adam):
        optimizer = kind(**SETTINGS, name="adam")
        optimizer.build([keras.Variable(rng.normal(size=(3, 5)), name="kernel")])
        names.append([(variable.path, tuple(variable.shape)) for variable in optimizer.variables])
    assert names[0] == names[1]


def test_amsgrad_and_sparse_gradients_equal_keras(rng):
    table = rng.normal(size=(5, 3)).astype("float32")
    sparse = tf.IndexedSlices(tf.ones((2, 3)), tf.constant([1, 3]), tf.constant([5, 3]))
    for settings, gradient in (({"amsgrad": True}, tf.constant(table * 2)), ({}, sparse)):
        updated = []
        for kind in (FusedAdam, keras.optimizers.Adam):
            variable = keras.Variable(table)
            kind(**SETTINGS, **settings).apply([gradient], [variable])
            updated.append(variable.numpy())
        np.testing.assert_array_equal(*updated)


def test_from_config_restores_the_settings():
    again = FusedAdam.from_config(FusedAdam(**SETTINGS).get_config())
    assert {name: again.get_config()[name] for name in SETTINGS} == pytest.approx(SETTINGS)
