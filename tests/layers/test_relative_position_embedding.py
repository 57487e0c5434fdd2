import numpy as np
import pytest
from keras import ops
from layer_checks import check_config

from t2t_relpos.layers import RelativePositionEmbedding


def test_relative_position_embedding_output_shape_and_config(rng):
    layer = RelativePositionEmbedding(2, depth=11)
    assert layer(rng.normal(size=(3, 7, 5))).shape == (7, 7, 11)
    check_config(layer)


@pytest.mark.parametrize("num_heads", [None, 3])
def test_relative_position_embedding_looks_up_clipped_distances(num_heads, rng):
    layer = RelativePositionEmbedding(2, depth=5, num_heads=num_heads)
    vectors = ops.convert_to_numpy(layer(rng.normal(size=(1, 3, 1)), rng.normal(size=(1, 7, 1))))
    table = ops.convert_to_numpy(layer.table)
    for i in range(3):
        for j in range(7):
            row = np.clip(j - (i + 4), -2, 2) + 2
            np.testing.assert_array_equal(vectors[..., i, j, :], table[..., row, :])


def test_relative_position_embedding_query_offset(rng):
    layer = RelativePositionEmbedding(3, depth=5)
    vectors = layer(rng.normal(size=(1, 1, 1)), rng.normal(size=(1, 5, 1)), query_offset=1)
    np.testing.assert_array_equal(vectors[0], layer.table[2:7])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            (-1, 5),
            "Expected `max_rel.* from 0 to 1,000,000. Received: max_relative_position=-1",
        ),
        ((2.0, 5), "Received: max_relative_position=2.0"),
        ((2, 0), "Expected `depth` to be a positive integer. Received: depth=0"),
    ],
)
def test_relative_position_embedding_rejects_invalid_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        RelativePositionEmbedding(*arguments)
