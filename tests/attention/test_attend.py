"""Tests of the arguments and results of `attend`."""

import numpy as np
import pytest
from keras import ops

from t2t_relpos.attention import attend, dispatch

X = np.ones((2, 3, 7, 5), "float32")


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


@pytest.mark.parametrize("implementation", ["rows", "band", "by_id", "scanned_blocks", None])
@pytest.mark.parametrize(
    "offset", [np.int64(2**31 - 1), np.array(2**31 - 1), np.array(250, "uint8")]
)
def test_query_offset_of_any_integer_dtype(offset, implementation, draw, precision):
    """Beyond K positions, results don't depend on the offset."""
    arrays = draw(5, 7, 3)
    options = {"causal": True, "return_weights": False, "implementation": implementation}
    outputs, _ = attend(*arrays, **options, query_offset=ops.convert_to_tensor(offset))
    expected, _ = attend(*arrays, **options, query_offset=20)
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=precision.atol)
    first = ops.convert_to_numpy(attend(*arrays, **options, query_offset=1 - 2**31)[0])
    assert not first.any(), "all keys are after the queries"


@pytest.mark.parametrize("lengths", [(0, 7), (7, 0), (0, 0)])
def test_rematerialized_attention_without_queries_or_keys(lengths, draw):
    arrays = draw(*lengths, 3)
    for tables in (arrays[3:], [None, None]):
        options = {"rematerialize": True, "return_weights": False}
        outputs, _ = attend(*arrays[:3], *tables, **options)
        np.testing.assert_array_equal(outputs, np.zeros((2, 3, lengths[0], 5)))


def test_dropout_applies_to_values_and_value_table(draw, precision):
    arrays = draw(7, 7, 3)
    doubled = ops.convert_to_numpy(attend(*arrays, dropout=lambda weights: 2 * weights)[0])
    expected = 2 * ops.convert_to_numpy(attend(*arrays)[0])
    np.testing.assert_allclose(doubled, expected, rtol=0, atol=precision.atol)


def test_tables_of_arbitrary_ids_may_have_an_even_number_of_rows():
    tables = np.arange(20.0, dtype="float32").reshape(4, 5), np.ones((4, 5), "float32")
    outputs, _ = attend(X, X, X, *tables, relative_ids=np.full((7, 7), 3))
    np.testing.assert_allclose(outputs, 2 * X, rtol=1e-6)


def test_int32_lengths_do_not_overflow_in_conditions(tf):
    length = tf.constant(50_000)
    call = dispatch.AttentionCall(length, length, 16, backend="tensorflow", xla=False, device="cpu")
    candidates = dispatch.select(call)
    holds = [c.implementation.name for c in candidates if c.condition is True or bool(c.condition)]
    assert holds[0] == "rematerialized_blocks"


def table(*shape):
    return np.ones(shape, "float32")


def with_ids(ids):
    return {"key_table": table(4, 5), "relative_ids": ids}


FLOAT_MASKS = {"mask": table(7, 7), "key_mask": table(2, 7), "query_mask": table(2, 7)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"key_table": table(6, 5)},
            "tables with an odd number of rows, R = 2 .* Received: 6 rows. For other tables",
        ),
        ({"value_table": table(1, 7, 5)}, r"Received: shape \(1, 7, 5\)"),
        ({"value_table": table(5)}, r"Received: shape \(5,\)"),
        (
            {"key_table": table(5, 5), "value_table": table(7, 5)},
            r"`value_table` of shape \[R, Hv\] = \[5, \*\] or \[N, R, Hv\] = \[3, 5, \*\]. "
            r"Received: shape \(7, 5\). Both tables have the same number of rows",
        ),
        (
            with_ids(np.full((7, 7), -1)),
            r"`relative_ids` in \[0, 4\). Received: values from -1 to -1. They are the rows",
        ),
        (with_ids(np.full((7, 7), 4)), "Received: values from 4 to 4"),
        (
            with_ids(np.zeros((7, 7), "float32")),
            "Expected `relative_ids` of an integer dtype. Received: dtype float32",
        ),
        (
            with_ids(np.zeros(7, int)),
            r"Expected `relative_ids` of shape \[T, S\] or \[B, T, S\]. Received: shape \(7,\)",
        ),
        ({"query_offset": [0, 1]}, r"Expected `query_offset` to be an int, .* Received: \[0, 1\]"),
        ({"query_offset": True}, "Received: True"),
        ({"query_offset": 0.5}, "Expected `query_offset` of an integer dtype. Received: dtype"),
        ({"query_offset": 2**40}, r"in \[-2147483647"),
        ({"sliding_window": 0}, "Expected `sliding_window` to be a positive integer. Received: "),
        (
            {"query_offset": np.zeros((2, 1), int)},
            r"Expected `query_offset` of shape \[\] \(a scalar\) or \[B\]. .*: shape \(2, 1\)",
        ),
        *(
            (
                {name: mask},
                f"Expected `{name}` to be boolean, True = attend. Received: dtype float32. Convert",
            )
            for name, mask in FLOAT_MASKS.items()
        ),
    ],
)
def test_attend_raises(arguments, message):
    with pytest.raises(ValueError, match=message):
        attend(X, X, X, **arguments)
