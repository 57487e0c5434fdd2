"""Tests of dropout: rate, scale of the kept entries and independence of random numbers."""

import functools

import keras
import numpy as np
import pytest
from gradients import output_and_gradients
from keras import ops
from layer_cases import CASES, random_inputs

from t2t_relpos.layers.residual import Dropout


def dropped(layer, x):
    return ops.convert_to_numpy(layer(x, training=True))


@pytest.mark.parametrize("shape", [(101, 83, 13), (257, 83, 4), (107, 991), (106033,)])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_rate_and_scale(rng, shape, rate):
    x = 1 + rng.random(shape).astype("float32")
    outputs = dropped(Dropout(rate, seed=3), x)
    kept = outputs != 0
    np.testing.assert_allclose(outputs[kept], x[kept] / (1 - rate), rtol=2e-4)
    # Allow six standard deviations.
    assert abs(kept.mean() - (1 - rate)) < 6 * np.sqrt(rate * (1 - rate) / x.size)


def test_dropout_masks_are_independent():
    layer = Dropout(0.5, seed=5)
    first, second = (dropped(layer, np.ones((97, 88), "float32")).ravel() - 1 for _ in range(2))
    limit = 6 / np.sqrt(first.size)
    for distance in range(1, 9):
        assert abs(np.mean(first[distance:] * first[:-distance])) < limit
    assert abs(np.mean(first * second)) < limit
    np.testing.assert_array_equal(
        first, dropped(Dropout(0.5, seed=5), np.ones((97, 88), "float32")).ravel() - 1
    )


@pytest.mark.parametrize("shape", [(5, 8), (7, 11), (0, 3)])
def test_dropout_gradient_is_the_scaled_mask(shape):
    layer = Dropout(0.4, seed=1)
    outputs, gradients = output_and_gradients(
        lambda x: layer(x, training=True), np.ones(shape, "float32"), np.ones(shape, "float32")
    )
    np.testing.assert_array_equal(gradients, outputs)


def test_dropout_is_inactive_outside_training_or_at_rate_0(rng):
    x = rng.normal(size=(5, 7)).astype("float32")
    np.testing.assert_array_equal(Dropout(0.5)(x), x)
    np.testing.assert_array_equal(Dropout(0.0)(x, training=True), x)
    assert np.count_nonzero(dropped(Dropout(1 - 1e-9), x)) <= 1


def test_dropout_supports_bfloat16_and_serialization():
    outputs = Dropout(0.5, seed=2, dtype="mixed_bfloat16")(np.ones((3, 5)), training=True)
    assert keras.backend.standardize_dtype(outputs.dtype) == "bfloat16"
    restored = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(Dropout(0.25, seed=7))
    )
    assert type(restored) is Dropout and restored.rate == 0.25 and restored.seed == 7


@pytest.mark.parametrize("name", ["relative", "v2", "2d", "local", "relations"])
def test_attention_applies_dropout_only_in_training(name, rng):
    case = CASES[name]
    inputs, layer = random_inputs(case.input_names(), rng), case.make(dropout=0.5, seed=3)
    np.testing.assert_array_equal(*(case.call(layer, inputs) for _ in range(2)))
    training = functools.partial(layer, training=True)
    assert not np.array_equal(*(case.call(training, inputs) for _ in range(2)))
