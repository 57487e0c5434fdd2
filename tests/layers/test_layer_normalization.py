"""Compares layer normalization with Keras's: outputs and gradients."""

import contextlib

import keras
import numpy as np
import pytest
from comparisons import assert_all_close
from gradients import output_and_gradients, with_values
from keras import ops

from t2t_relpos.attention import portable
from t2t_relpos.layers.residual import LayerNormalization


def layer_pair(rng, width, epsilon, dtype="float32"):
    """Returns our layer and Keras's layer with the same weights."""
    pair = [
        layer_class(epsilon=epsilon, dtype=dtype)
        for layer_class in (LayerNormalization, keras.layers.LayerNormalization)
    ]
    weights = [rng.normal(size=width) for _ in range(2)]
    for layer in pair:
        layer.build((None, None, width))
        layer.set_weights(weights)
    return pair


@pytest.mark.parametrize("shape", [(7, 11), (3, 5, 7), (2, 3, 5, 1)])
@pytest.mark.parametrize("epsilon", [1e-6, 0.1])
def test_layer_normalization_equals_keras(rng, precision, shape, epsilon):
    dtype, atol = precision
    pair = layer_pair(rng, shape[-1], epsilon, dtype)
    x, cotangent = (rng.normal(size=shape).astype(dtype) for _ in range(2))
    weights = [ops.convert_to_numpy(weight) for weight in pair[0].weights]

    def call(layer):
        def function(inputs):
            return with_values(layer.weights, inputs[1:], lambda: layer(inputs[0]))

        return output_and_gradients(function, [x, *weights], cotangent)

    ours, theirs = map(call, pair)
    assert_all_close(ours, theirs, atol=1e3 * atol)


@pytest.mark.parametrize(
    "settings",
    [
        {"axis": 1},
        {"axis": (-1, 1)},
        {"axis": [2]},
        {"center": False},
        {"scale": False},
        {"center": False, "scale": False, "axis": 2},
    ],
)
@pytest.mark.parametrize("exported", [False, True])
def test_settings_of_keras(rng, settings, exported):
    pair = [
        layer_class(epsilon=1e-3, **settings)
        for layer_class in (LayerNormalization, keras.layers.LayerNormalization)
    ]
    for layer in pair:
        layer.build((None, 5, 7))
        layer.set_weights([np.random.default_rng(1).normal(size=v.shape) for v in layer.weights])
    x = rng.normal(size=(3, 5, 7)).astype("float32")
    if settings == {"axis": 1}:  # Keras's layer fails on PyTorch.
        pair[1] = keras.layers.LayerNormalization(epsilon=1e-3)
        pair[1].build((None, 7, 5))
        pair[1].set_weights(pair[0].get_weights())
        expected = ops.swapaxes(pair[1](x.swapaxes(1, 2)), 1, 2)
    else:
        expected = pair[1](x)
    with portable() if exported else contextlib.nullcontext():
        assert_all_close([pair[0](x)], [expected], atol=1e-5)
    assert type(pair[0]).from_config(pair[0].get_config()).get_config() == pair[0].get_config()


def test_the_first_argument_is_no_axis():
    with pytest.raises(ValueError, match="Expected `epsilon` to be at least 0 and below 1."):
        LayerNormalization(1)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "float16", "float32"])
def test_layer_normalization_computes_in_float32_as_keras(rng, policy):
    ours, theirs = layer_pair(rng, 7, 1e-6, policy)
    x = ops.cast(1 + 300 * rng.normal(size=(5, 7)), ours.compute_dtype)
    found, expected = ours(x), theirs(x)
    assert found.dtype == expected.dtype
    found, expected = (ops.convert_to_numpy(ops.cast(y, "float32")) for y in (found, expected))
    np.testing.assert_allclose(found, expected, atol=1e-5 if policy == "float32" else 0)
