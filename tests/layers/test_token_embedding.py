import numpy as np
import pytest
from keras import ops
from layer_checks import check_layer

from t2t_relpos.layers import TokenEmbedding


def test_token_embedding_contract():
    ids = np.array([[3, 5, 0], [1, 6, 2]], "int32")
    check_layer(lambda dtype: TokenEmbedding(7, 5, dtype=dtype), [ids], output_shape=(2, 3, 5))


def test_token_embedding_scales_vectors_and_zeros_padding():
    layer = TokenEmbedding(7, 5)
    vectors = ops.convert_to_numpy(layer(np.array([[3, 0]])))
    table = ops.convert_to_numpy(layer.embeddings)
    np.testing.assert_allclose(vectors[0, 0], table[3] * 5**0.5, rtol=1e-6)
    np.testing.assert_array_equal(vectors[0, 1], 0)


def test_token_embedding_reverse_multiplies_by_the_table(rng):
    layer = TokenEmbedding(7, 5)
    layer.build()
    x = rng.normal(size=(2, 3, 5)).astype("float32")
    np.testing.assert_allclose(
        layer(x, reverse=True), x @ ops.convert_to_numpy(layer.embeddings).T, rtol=1e-5
    )


@pytest.mark.parametrize("ids", [[[7]], [[-1]]])
def test_token_embedding_rejects_ids_out_of_range(ids):
    with pytest.raises(ValueError, match=r"Expected token ids in \[0, 7\).*Received: ids from"):
        TokenEmbedding(7, 5)(np.array(ids))


def test_token_embedding_rejects_float_ids():
    message = "Expected token ids of an integer dtype. Received: dtype float"
    with pytest.raises(ValueError, match=message):
        TokenEmbedding(7, 5)(np.array([[1.0]]))
