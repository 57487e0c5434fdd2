import numpy as np
import pytest

from t2t_relpos.decoding.top_k import top_k


@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("size", [7, 1009])
def test_top_k_breaks_ties_by_index(size, k, rng):
    x = rng.integers(-3, 3, size=(5, size)).astype("float32")
    values, indices = top_k(x, k)
    expected = np.argsort(-x, axis=-1, kind="stable")[:, :k]
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis=-1))


def test_top_k_of_an_empty_batch_is_empty():
    values, indices = top_k(np.zeros((0, 7), "float32"), 3)
    assert tuple(values.shape) == tuple(indices.shape) == (0, 3)
