"""Tests errors of `attend` and `attend_locally` for unsupported arguments."""

import numpy as np
import pytest

from t2t_relpos.attention import attend, attend_locally, dispatch
from t2t_relpos.attention.request import Request

X = np.ones((2, 3, 7, 5), "float32")


def table(*shape):
    return np.ones(shape, "float32")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"key_table": table(6, 5)},
            r"Expected `key_table` of shape \[2 \* max_relative_position \+ 1, depth\] for all "
            r"heads, or \[3, 2 \* max_relative_position \+ 1, depth\] with a table for each head. "
            r"Received: shape \(6, 5\)",
        ),
        ({"value_table": table(1, 7, 5)}, r"Received: shape \(1, 7, 5\)"),
        ({"value_table": table(5)}, r"Received: shape \(5,\)"),
        (
            {"key_table": table(5, 5), "value_table": table(7, 5)},
            r"Expected `key_table` and `value_table` with the same number of rows, .* Received: "
            r"shapes \(5, 5\) and \(7, 5\)",
        ),
        (
            {"key_table": table(4, 5), "relative_ids": np.full((7, 7), -1)},
            r"Expected `relative_ids` in \[0, 4\), the rows of the tables. Received: ids from -1",
        ),
        (
            {"key_table": table(4, 5), "relative_ids": np.full((7, 7), 4)},
            "Received: ids from 4 to 4",
        ),
        (
            {"key_table": table(4, 5), "relative_ids": np.zeros((7, 7), "float32")},
            "Expected `relative_ids` of an integer dtype. Received: dtype float32",
        ),
        (
            {"key_table": table(4, 5), "relative_ids": np.zeros(7, int)},
            r"Expected `relative_ids` of shape \[T, S\] or \[B, T, S\]. Received: shape \(7,\)",
        ),
        ({"query_offset": [0, 1]}, r"Expected `query_offset` to be an int, .* Received: \[0, 1\]"),
        ({"query_offset": True}, "Received: True"),
        ({"query_offset": 0.5}, "Expected query_offset of an integer dtype. Received: dtype float"),
        (
            {"query_offset": np.zeros((2, 1), int)},
            r"Expected `query_offset` to be a scalar, or a tensor \[B\] .*: shape \(2, 1\)",
        ),
    ],
)
def test_attend_raises(arguments, message):
    with pytest.raises(ValueError, match=message):
        attend(X, X, X, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"key": X[:, :, :5]},
            "Expected as many queries as keys: .* Received: 7 queries and 5 keys",
        ),
        ({"window": 0}, "Expected `window` to be a positive integer. Received: window=0"),
        ({"key_mask": np.zeros((2, 7), "float32")}, "Expected `key_mask` to be boolean"),
    ],
)
def test_attend_locally_raises(arguments, message):
    with pytest.raises(ValueError, match=message):
        attend_locally(**{"query": X, "key": X, "value": X, "window": 2} | arguments)


def test_tables_of_arbitrary_ids_may_have_an_even_number_of_rows():
    tables = np.arange(20.0, dtype="float32").reshape(4, 5), np.ones((4, 5), "float32")
    ids = np.full((7, 7), 3)
    outputs, _ = attend(X, X, X, *tables, relative_ids=ids)
    np.testing.assert_allclose(outputs, 2 * X, rtol=1e-6)


def test_int32_lengths_do_not_overflow_in_conditions(tf):
    length = tf.constant(50_000)
    request = Request(length, length, 16, backend="tensorflow", xla=False, device="cpu")
    candidates = dispatch.select(request)
    holds = [c.implementation.name for c in candidates if c.condition is True or bool(c.condition)]
    assert holds[0] == "rematerialized_blocks"
