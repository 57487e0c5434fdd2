"""Tests arguments of the variants that tensor2tensor does not have.

test_recorded.py compares outputs and gradients without them with tensor2tensor.
"""

import numpy as np
import pytest
from keras import ops

from t2t_relpos.attention import attend, causal_mask, relative_ids
from t2t_relpos.attention.t2t_variants import (
    attend_2d,
    attend_two_blocks,
    left_sided_table,
    two_sided_table,
)


@pytest.mark.parametrize("heads", [(), (2,)])
@pytest.mark.parametrize(("convert", "rows"), [(two_sided_table, 5), (left_sided_table, 3)])
def test_converted_table_is_zero_beyond_its_distances(convert, rows, heads, rng):
    table = rng.normal(size=(*heads, rows, 7)).astype("float32")  # K = 3
    converted = ops.convert_to_numpy(convert(table))
    assert converted.shape == (*heads, 7, 7)
    by_pair = converted[..., ops.convert_to_numpy(relative_ids(11, 11, 3)), :]
    for i, j in np.ndindex(11, 11):
        row = j - i + 2
        expected = table[..., row, :] if 0 <= row < rows else 0
        np.testing.assert_array_equal(by_pair[..., i, j, :] - expected, 0)


def random_tensors(rng, size, rows):
    """Returns query, key and value of the given size, and two tables per head."""
    shapes = [(2, 3, *size, 5), (2, 3, *size, 5), (2, 3, *size, 7), (3, rows, 5), (3, rows, 5)]
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


class TestAttend2D:
    @pytest.fixture
    def tensors(self, rng):
        return random_tensors(rng, (5, 7), 5)

    def test_masked_cells_have_no_effect(self, tensors):
        mask = np.ones((2, 1, 1, 35), bool)
        mask[1, ..., 14:] = False  # all but the first two rows
        outputs, weights = attend_2d(*tensors, mask=mask)
        np.testing.assert_array_equal(np.array(weights)[1, ..., 14:], 0)
        two_rows, _ = attend_2d(*(x[1:, :, :2] for x in tensors[:3]), *tensors[3:])
        np.testing.assert_allclose(np.array(outputs)[1:, :, :2], two_rows, atol=1e-5)

    def test_dropout_receives_the_weights(self, tensors):
        outputs, weights = attend_2d(*tensors, dropout=lambda w: w * 2)
        np.testing.assert_allclose(outputs, 2 * attend_2d(*tensors)[0], atol=1e-5)
        assert weights.shape == (2, 3, 35, 35)
        np.testing.assert_allclose(ops.sum(weights, axis=-1), 1, atol=1e-5)

    def test_outputs_with_unknown_sizes(self, tensors, tf):
        spec = [tf.TensorSpec([None, 3, None, None, depth]) for depth in (5, 5, 7)]
        graph = tf.function(lambda *x: attend_2d(*x, *tensors[3:])[0], input_signature=spec)
        np.testing.assert_allclose(graph(*tensors[:3]), attend_2d(*tensors)[0], atol=1e-5)


class TestAttendTwoBlocks:
    @pytest.fixture
    def tensors(self, rng):
        query, key, value, key_table, _ = random_tensors(rng, (11,), 12)
        return [query, key, value, key_table, rng.normal(size=(3, 12, 7)).astype("float32")]

    def test_table_rows_beyond_two_blocks_have_no_effect(self, tensors):
        before = attend_two_blocks(*tensors, block_length=3)
        for table in tensors[3:]:
            table[:, :-6] = 1e3
        np.testing.assert_array_equal(attend_two_blocks(*tensors, block_length=3), before)

    def test_masked_keys_have_no_effect(self, tensors):
        tensors = tensors[:4]
        key_mask = np.ones((2, 11), bool)
        key_mask[0, :2] = False  # The first two queries are fully masked.
        key_mask[1, 5] = False
        outputs = attend_two_blocks(*tensors, block_length=3, key_mask=key_mask)
        blocks = np.arange(11) // 3
        mask = ops.convert_to_numpy(causal_mask(11, 11)) & (blocks >= blocks[:, None] - 1)
        tensors[3] = left_sided_table(tensors[3])
        expected, _ = attend(*tensors, mask=mask, key_mask=key_mask)
        np.testing.assert_allclose(outputs, expected, atol=1e-5)
        np.testing.assert_array_equal(np.array(outputs)[0, :, :2], 0)

    def test_dropout_receives_the_weights_of_blocks(self, tensors):
        shapes = []

        def dropout(weights):
            shapes.append(tuple(weights.shape))
            return weights * 2

        outputs = attend_two_blocks(*tensors, block_length=3, dropout=dropout)
        expected = 2 * ops.convert_to_numpy(attend_two_blocks(*tensors, block_length=3))
        np.testing.assert_allclose(outputs, expected, atol=1e-5)
        # Four blocks per batch entry, each with two blocks of keys: no shape is quadratic in T.
        assert shapes == [(8, 3, 3, 6)]

    def test_outputs_with_unknown_lengths(self, tensors, tf):
        spec = [tf.TensorSpec([None, 3, None, depth]) for depth in (5, 5, 7)]
        graph = tf.function(
            lambda *x: attend_two_blocks(*x, *tensors[3:], block_length=3), input_signature=spec
        )
        for length in (2, 5, 6, 11):
            sequences = [x[:, :, :length] for x in tensors[:3]]
            expected = attend_two_blocks(*sequences, *tensors[3:], block_length=3)
            np.testing.assert_allclose(graph(*sequences), expected, atol=1e-5)
