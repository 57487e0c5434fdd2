"""Tests of layers that are made in a `keras.RematScope`, on JAX and PyTorch."""

import keras
import numpy as np
import pytest
from layer_cases import CASES, WIDTH, random_inputs

from t2t_relpos.layers import (
    LocalRelativeMultiHeadAttention,
    RelativeMultiHeadAttention,
    TransformerEncoder,
)

pytestmark = pytest.mark.skipif(
    keras.backend.backend() == "tensorflow",
    reason="Keras does not rematerialize its own layers on TensorFlow",
)
SCOPES = [
    {"mode": "full"},
    {"mode": "list_of_layers", "layer_names": ["layer"]},
    {"mode": "activations"},
    {"mode": "larger_than", "output_size_threshold": 1},
    {"mode": "larger_than", "output_size_threshold": 10**6},
]
NAMES = ["relative", "2d", "relations", "decoder"]


def losses(make, inputs, *, whole_model=False, **scope):
    """Returns the losses of two steps. The layers, or the whole model, are made in a scope."""
    keras.utils.set_random_seed(1)
    with keras.RematScope(**scope):
        outputs, symbols = make()
        if whole_model:
            model = keras.Model(symbols, outputs)
    if not whole_model:
        model = keras.Model(symbols, outputs)
    model.compile("sgd", "mse")
    targets = np.ones(model.compute_output_shape({k: x.shape for k, x in inputs.items()}))
    return model.fit(inputs, targets, epochs=2, verbose=0).history["loss"]


@pytest.mark.parametrize("name", NAMES)
def test_rematerialized_layer_trains_as_without_scope(name, rng):
    case = CASES[name]
    inputs = random_inputs(case.input_names(), rng)

    def make():
        symbols = {
            key: keras.Input(x.shape[1:], dtype=str(x.dtype), name=key) for key, x in inputs.items()
        }
        return case.call(case.make(name="layer"), symbols), symbols

    np.testing.assert_allclose(
        losses(make, inputs, mode="full"), losses(make, inputs, mode=None), rtol=1e-5
    )


def test_modes_of_the_scope_keep_masks():
    ids = np.array([[3, 5, 2, 0, 0], [1, 2, 3, 4, 5]])

    def make():
        symbols = {"ids": keras.Input((5,), dtype="int32", name="ids")}
        x = keras.layers.Embedding(7, WIDTH, mask_zero=True)(symbols["ids"])
        return TransformerEncoder(11, 2, max_relative_position=3, name="layer")(x), symbols

    expected = losses(make, {"ids": ids}, mode=None)
    for scope in SCOPES:
        found = losses(make, {"ids": ids}, **scope)
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=scope["mode"])


def test_whole_functional_model_trains_as_without_scope(rng):
    """Keras makes `training` a tensor there on JAX, and its layers lose attached masks too."""
    inputs = {"x": rng.normal(size=(2, 5, WIDTH)).astype("float32")}

    def make():
        symbols = {"x": keras.Input((5, WIDTH), name="x")}
        x = RelativeMultiHeadAttention(2, 3, max_relative_position=3)(symbols["x"], symbols["x"])
        x = LocalRelativeMultiHeadAttention(2, 3, block_length=4)(x, x)
        return TransformerEncoder(11, 2, max_relative_position=3)(x), symbols

    expected = losses(make, inputs, mode=None)
    for scope in (SCOPES[0], SCOPES[3]):
        found = losses(make, inputs, whole_model=True, **scope)
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=scope["mode"])


def test_eager_call_keeps_masks_and_arguments():
    ids = np.array([[3, 5, 2, 0, 0]])
    x = keras.layers.Embedding(7, WIDTH, mask_zero=True)(ids)
    with keras.RematScope("full"):
        layer = RelativeMultiHeadAttention(2, 3, max_relative_position=3)
        outputs, scores = layer(x, x, use_causal_mask=True, return_attention_scores=True)
    assert outputs._keras_mask is not None
    scores = keras.ops.convert_to_numpy(scores)
    np.testing.assert_array_equal(scores[0, 0, 0], [1, 0, 0, 0, 0])
    np.testing.assert_array_equal(scores[0, 0, :, 3:], 0)
