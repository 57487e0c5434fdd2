"""Tests of the arguments and results of `attend`."""

import numpy as np
from keras import ops

from t2t_relpos.attention import attend


def test_query_mask_zeroes_outputs_and_weights(draw):
    query_mask = np.arange(7)[None] < np.array([[7], [3]])
    outputs, weights = attend(*draw(7, 7, 3), query_mask=query_mask)
    for x in (outputs, weights):
        assert not ops.convert_to_numpy(x)[1, :, 3:].any()
        assert ops.convert_to_numpy(x)[1, :, :3].any()


def test_query_offset_per_batch_entry_equals_separate_calls(draw, precision):
    query, key, value, *tables = draw(1, 11, 3)
    offsets = np.array([4, 10], "int32")
    outputs = ops.convert_to_numpy(attend(query, key, value, *tables, query_offset=offsets)[0])
    for entry in range(2):
        one = [x[entry : entry + 1] for x in (query, key, value)]
        expected = attend(*one, *tables, query_offset=int(offsets[entry]))[0]
        np.testing.assert_allclose(
            outputs[entry : entry + 1], expected, rtol=0, atol=precision.atol
        )


def test_dropout_applies_to_values_and_value_table(draw, precision):
    arrays = draw(7, 7, 3)
    doubled = ops.convert_to_numpy(attend(*arrays, dropout=lambda weights: 2 * weights)[0])
    expected = 2 * ops.convert_to_numpy(attend(*arrays)[0])
    np.testing.assert_allclose(doubled, expected, rtol=0, atol=precision.atol)


def test_returned_weights_sum_to_one(draw, precision):
    for name in ("rows", "band", "by_id"):
        _, weights = attend(*draw(7, 11, 3), implementation=name)
        np.testing.assert_allclose(ops.sum(weights, axis=-1), 1, atol=precision.atol)
