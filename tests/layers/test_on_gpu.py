"""Layers in the dtypes and at the lengths of GPUs. `make gpu-check` runs it on a GPU."""

import keras
import numpy as np
import pytest
from definition import relative_attention
from measurement import relative_error

from t2t_relpos.layers import RelativeMultiHeadAttention, TransformerEncoder

pytestmark = pytest.mark.gpu
HEADS, DEPTH, K = 2, 32, 16


@pytest.mark.parametrize("flash_attention", [None, True])
@pytest.mark.parametrize(("length", "causal"), [(70, False), (300, True)])
def test_layer_with_padding_equals_the_definition(length, causal, flash_attention, rng):
    layer = RelativeMultiHeadAttention(
        HEADS,
        DEPTH,
        max_relative_position=K,
        flash_attention=flash_attention,
        bias_initializer="random_normal",
        dtype="mixed_bfloat16",
    )
    x = rng.normal(size=(2, length, 32)).astype("float32")
    mask = np.arange(length) < np.array([[length], [length - length // 3]])
    inputs = keras.Input((length, 32)), keras.Input((length,), dtype="bool")
    outputs = layer(inputs[0], inputs[0], value_mask=inputs[1], use_causal_mask=causal)
    assert outputs.dtype == "bfloat16"
    # A model compiles the layer. NumPy has no bfloat16.
    model = keras.Model(inputs, keras.layers.Identity(dtype="float32")(outputs))
    outputs = model.predict_on_batch((x, mask))
    expected = relative_attention(layer, x, causal=causal, mask=mask[:, None, None])
    assert relative_error(outputs, expected) <= 3e-2


def test_training_in_bfloat16_decreases_the_loss(rng):
    x = rng.normal(size=(4, 70, 32)).astype("float32")
    inputs = keras.Input((70, 32))
    block = TransformerEncoder(64, HEADS, max_relative_position=K, dtype="mixed_bfloat16")
    model = keras.Model(inputs, block(inputs))
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    losses = model.fit(x, x[:, ::-1], batch_size=4, epochs=20, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < 0.8 * losses[0]
