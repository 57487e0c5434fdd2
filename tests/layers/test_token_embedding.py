import numpy as np
import pytest
from keras import ops

from t2t_relpos.layers import TokenEmbedding


def test_layer_contract(check_layer):
    ids = np.array([[3, 5, 0], [1, 6, 2]], "int32")
    check_layer(lambda dtype: TokenEmbedding(7, 5, dtype=dtype), [ids], output_shape=(2, 3, 5))


def test_vectors_are_scaled_and_padding_is_zero():
    layer = TokenEmbedding(7, 5)
    vectors = ops.convert_to_numpy(layer(np.array([[3, 0]])))
    table = ops.convert_to_numpy(layer.embeddings)
    np.testing.assert_allclose(vectors[0, 0], table[3] * 5**0.5, rtol=1e-6)
    np.testing.assert_array_equal(vectors[0, 1], 0)


def test_reverse_is_the_product_with_the_table(rng):
    layer = TokenEmbedding(7, 5)
    layer.build()
    x = rng.normal(size=(2, 3, 5)).astype("float32")
    np.testing.assert_allclose(
        layer(x, reverse=True), x @ ops.convert_to_numpy(layer.embeddings).T, rtol=1e-5
    )


@pytest.mark.parametrize("ids", [[[7]], [[-1]]])
def test_ids_out_of_range(ids):
    with pytest.raises(ValueError, match=r"Expected token ids in \[0, 7\).*Received: ids from"):
        TokenEmbedding(7, 5)(np.array(ids))


def test_float_ids():
    with pytest.raises(
        ValueError, match="Expected token ids of an integer dtype. Received: dtype float"
    ):
        TokenEmbedding(7, 5)(np.array([[1.0]]))
