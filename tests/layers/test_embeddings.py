"""Tests of token embeddings, position encodings and embeddings of relative positions."""

import keras
import numpy as np
import pytest
from keras import ops

from t2t_relpos.layers import (
    LearnedPositionEmbedding,
    RelativePositionEmbedding,
    SinusoidalPositionEncoding,
)

ENCODINGS = pytest.mark.parametrize(
    "make", [SinusoidalPositionEncoding, lambda: LearnedPositionEmbedding(13)]
)


@ENCODINGS
def test_positions_count_along_the_axis_before_the_last(make):
    layer = make()
    expected = ops.convert_to_numpy(layer(np.zeros((1, 5, 4), "float32")))[0]
    assert len(np.unique(expected, axis=0)) == 5
    for shape in ((5, 4), (2, 1, 5, 4), (2, 3, 7, 5, 4)):
        outputs = layer(np.zeros(shape, "float32"))
        np.testing.assert_array_equal(outputs, np.broadcast_to(expected, shape))
    for shape in ((2, 2, 4), (2, 3, 2, 4)):
        outputs = layer(np.zeros(shape, "float32"), start=np.array([0, 3], "int32"))
        outputs = ops.reshape(outputs, (2, -1, 2, 4))[:, -1]
        np.testing.assert_allclose(outputs, [expected[:2], expected[3:]], atol=1e-6)


@ENCODINGS
def test_explicit_positions(make):
    layer = make()
    table = ops.convert_to_numpy(layer(np.zeros((1, 13, 4), "float32")))[0]
    for positions in ([3, 0, 3], np.array([12, 1, 0], "uint8"), np.array([[0, 1, 2], [7, 7, 7]])):
        outputs = layer(np.zeros((2, 3, 4), "float32"), positions=positions)
        expected = np.broadcast_to(table[np.asarray(positions)], (2, 3, 4))
        np.testing.assert_allclose(outputs, expected, atol=1e-6)
    symbols = keras.Input((None, 4)), keras.Input((None,), dtype="int32")
    model = keras.Model(symbols, layer(symbols[0], positions=symbols[1]))
    arrays = np.zeros((2, 3, 4), "float32"), np.array([[0, 1, 2], [7, 7, 7]])
    np.testing.assert_allclose(model(arrays), table[arrays[1]], atol=1e-6)


@pytest.mark.parametrize(
    "distances, left, right", [(2, 2, 2), ((3, 1), 3, 1), ([0, 2], 0, 2), ((2, 0), 2, 0)]
)
@pytest.mark.parametrize("num_heads", [None, 3])
def test_relative_position_embedding_looks_up_clipped_distances(
    distances, left, right, num_heads, rng
):
    layer = RelativePositionEmbedding(distances, depth=5, num_heads=num_heads)
    vectors = ops.convert_to_numpy(layer(rng.normal(size=(1, 3, 1)), rng.normal(size=(1, 7, 1))))
    table = ops.convert_to_numpy(layer.table)
    assert table.shape[-2] == left + right + 1
    for i in range(3):
        for j in range(7):
            row = np.clip(j - (i + 4), -left, right) + left
            np.testing.assert_array_equal(vectors[..., i, j, :], table[..., row, :])


def test_relative_position_embedding_query_offset(rng):
    layer = RelativePositionEmbedding(3, depth=5)
    assert layer(rng.normal(size=(3, 7, 5))).shape == (7, 7, 5)
    vectors = layer(rng.normal(size=(1, 1, 1)), rng.normal(size=(1, 5, 1)), query_offset=1)
    np.testing.assert_array_equal(vectors[0], layer.table[2:7])
