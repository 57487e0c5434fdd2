import numpy as np
import pytest
from keras import ops

from t2t_relpos.attention.variants import attend_2d


def attend_in_loops(query, key, value, height_table, width_table):
    """Computes attention with loops over pairs of cells. Tables have shape `[N, 2K + 1, H]`."""
    batch, heads, height, width, _ = query.shape
    k = height_table.shape[-2] // 2
    outputs = np.zeros((*query.shape[:-1], value.shape[-1]))
    for b, n, y, x in np.ndindex(batch, heads, height, width):
        q = query[b, n, y, x]
        scores = np.zeros((height, width))
        for v, u in np.ndindex(height, width):
            down, right = (np.clip(d, -k, k) + k for d in (v - y, u - x))
            scores[v, u] = q @ (key[b, n, v, u] + height_table[n, down] + width_table[n, right])
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        outputs[b, n, y, x] = np.tensordot(weights, value[b, n], 2)
    return outputs


@pytest.fixture
def tensors(rng):
    shapes = [(2, 3, 5, 7, 4), (2, 3, 5, 7, 4), (2, 3, 5, 7, 11), (3, 5, 4), (3, 5, 4)]
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


def test_outputs_equal_loops(tensors):
    outputs, weights = attend_2d(*tensors)
    np.testing.assert_allclose(outputs, attend_in_loops(*tensors), atol=1e-5)
    assert weights.shape == (2, 3, 35, 35)
    np.testing.assert_allclose(ops.sum(weights, axis=-1), 1, atol=1e-5)


def test_masked_cells_have_zero_weight(tensors):
    mask = np.ones((2, 1, 1, 35), bool)
    mask[1, ..., 14:] = False  # all but the first two rows
    outputs, weights = attend_2d(*tensors, mask=mask)
    np.testing.assert_array_equal(np.array(weights)[1, ..., 14:], 0)
    small = [x[1:, :, :2] for x in tensors[:3]]
    expected = attend_in_loops(*small, *tensors[3:])
    np.testing.assert_allclose(np.array(outputs)[1:, :, :2], expected, atol=1e-5)


def test_dropout_receives_the_weights(tensors):
    outputs, weights = attend_2d(*tensors, dropout=lambda w: w * 2)
    np.testing.assert_allclose(outputs, 2 * attend_in_loops(*tensors), atol=1e-5)
    np.testing.assert_allclose(ops.sum(weights, axis=-1), 1, atol=1e-5)


def test_outputs_with_unknown_sizes(tensors, tf):
    spec = [tf.TensorSpec([None, 3, None, None, depth]) for depth in (4, 4, 11)]
    graph = tf.function(lambda *x: attend_2d(*x, *tensors[3:])[0], input_signature=spec)
    np.testing.assert_allclose(graph(*tensors[:3]), attend_in_loops(*tensors), atol=1e-5)
