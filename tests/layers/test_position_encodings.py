import math

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import check_layer

from t2t_relpos.layers import LearnedPositionEmbedding, SinusoidalPositionEncoding


def t2t_timing_signal(length, width):
    count = width // 2
    rates = [math.exp(-i * math.log(10_000) / max(count - 1, 1)) for i in range(count)]
    rows = [
        [math.sin(p * r) for r in rates] + [math.cos(p * r) for r in rates] + [0.0] * (width % 2)
        for p in range(length)
    ]
    return np.array(rows)


@pytest.mark.parametrize("width", [2, 6, 7])
def test_sinusoids_equal_tensor2tensor(width, rng):
    x = rng.normal(size=(3, 11, width)).astype("float32")
    outputs = ops.convert_to_numpy(SinusoidalPositionEncoding()(x))
    np.testing.assert_allclose(
        outputs - x, np.broadcast_to(t2t_timing_signal(11, width), x.shape), atol=2e-6
    )


@pytest.mark.parametrize(
    "make", [SinusoidalPositionEncoding, lambda **kw: LearnedPositionEmbedding(13, **kw)]
)
def test_position_encoding_contract(make, rng):
    check_layer(make, [rng.normal(size=(3, 7, 5)).astype("float32")], output_shape=(3, 7, 5))


@pytest.mark.parametrize("make", [SinusoidalPositionEncoding, lambda: LearnedPositionEmbedding(13)])
def test_position_encoding_start_per_batch_entry(make, rng):
    layer = make()
    full = ops.convert_to_numpy(layer(np.zeros((1, 13, 5), "float32")))[0]
    parts = layer(np.zeros((3, 2, 5), "float32"), start=np.array([0, 7, 11], "int32"))
    np.testing.assert_allclose(parts, np.stack([full[0:2], full[7:9], full[11:13]]), atol=1e-6)


def test_learned_positions_reject_long_sequences(rng):
    layer = LearnedPositionEmbedding(5)
    with pytest.raises(ValueError, match="Expected at most max_length=5 positions. Received: 7"):
        layer(np.zeros((1, 7, 3)))
    with pytest.raises(ValueError, match="Expected at most max_length=5 positions. Received: 7"):
        layer(keras.Input((7, 3)))
    with pytest.raises(ValueError, match="Expected `max_length` to be a positive integer"):
        LearnedPositionEmbedding(0)
