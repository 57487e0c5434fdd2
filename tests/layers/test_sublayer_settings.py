"""Tests of settings that layers pass to their sublayers: `trainable` and seeds."""

import keras
import numpy as np
import pytest
from keras import ops
from layer_cases import BLOCK, CASES, SIZES, random_inputs, symbolic_inputs

from t2t_relpos.layers import Residual, TransformerDecoder

FROZEN = "relative", "relations", "feed_forward", "encoder", "decoder"


def test_frozen_layers_stay_frozen(tmp_path, rng):
    residual = Residual(trainable=False)
    residual.build((None, 7, 6))
    assert not residual.trainable_variables
    # A residual can not be saved: its sublayer is a function.
    symbols = symbolic_inputs(["x", "y", "labels"], SIZES)
    frozen = {
        name: CASES[name].call(CASES[name].make(trainable=False, name=name), symbols)
        for name in FROZEN
    }
    model = keras.Model(symbols, {name: keras.layers.Dense(1)(y) for name, y in frozen.items()})
    model.save(tmp_path / "model.keras")
    inputs = random_inputs(symbols, rng)
    for each in (model, keras.models.load_model(tmp_path / "model.keras")):
        assert len(each.trainable_variables) == 2 * len(frozen)
        before = {name: each.get_layer(name).get_weights() for name in frozen}
        # JAX without compilation would take minutes.
        each.compile("sgd", "mse", run_eagerly=keras.backend.backend() != "jax")
        each.fit(inputs, dict.fromkeys(frozen, inputs["x"][..., :1]), verbose=0)
        for name, weights in before.items():
            assert weights and not each.get_layer(name).trainable_variables, name
            for old, new in zip(weights, each.get_layer(name).get_weights(), strict=True):
                np.testing.assert_array_equal(new, old, err_msg=name)


def dropped(residual):
    """Returns which units of ones the dropout of a residual sets to zero."""
    outputs = residual.dropout_layer(np.ones((3, 7, 6), "float32"), training=True)
    return ops.convert_to_numpy(outputs) == 0


def test_residuals_of_a_block_with_a_seed_drop_different_units():
    masks = []
    for _ in range(2):
        block = TransformerDecoder(**BLOCK, dropout=0.5, seed=3)
        block.build((None, 7, 6), (None, 7, 6))
        names = ("self_attention", "cross_attention", "feed_forward")
        masks.append([dropped(getattr(block, f"{name}_residual")) for name in names])
        assert block.get_config()["seed"] == 3
    np.testing.assert_array_equal(*masks)
    first, second, third = masks[0]
    assert (first != second).any() and (first != third).any() and (second != third).any()


def test_residual_rejects_a_layer_in_a_functional_model():
    message = "a function without weights in a functional model, .* Received: the layer mine. Write"
    with pytest.raises(ValueError, match=message):
        Residual()(keras.Input((7, 6)), sublayer=keras.layers.Dense(6, name="mine"))
    x = np.ones((3, 7, 6), "float32")
    dense = keras.layers.Dense(6, kernel_initializer="zeros")
    np.testing.assert_array_equal(Residual()(x, sublayer=dense), x)
