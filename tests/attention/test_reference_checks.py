"""Tests that the ports reject invalid arguments."""

import numpy as np
import pytest

from t2t_relpos.attention import reference


def random_inputs(length_q=3, length_k=3, rows=5, batch=2, heads=3, depth=7):
    rng = np.random.default_rng(0)
    shapes = {
        "q": (batch, heads, length_q, depth),
        "k": (batch, heads, length_k, depth),
        "v": (batch, heads, length_k, depth),
        "key_embeddings": (rows, depth),
        "value_embeddings": (rows, depth),
    }
    return {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}


@pytest.mark.parametrize("value", [None, 0, -1, 2.0, True])
def test_max_relative_position_must_be_positive(value):
    with pytest.raises(
        ValueError,
        match=r"Expected max_relative_position to be an int of at least 1: .*"
        rf"Received: max_relative_position={value}\.",
    ):
        reference.dot_product_attention_relative(
            **random_inputs(), bias=None, max_relative_position=value
        )


@pytest.mark.parametrize("value", [None, -1, 2.0, True])
def test_position_matrix_rejects_invalid_max_relative_position(value):
    with pytest.raises(
        ValueError,
        match=r"Expected max_relative_position to be an int of at least 0: .*"
        rf"Received: max_relative_position={value}\.",
    ):
        reference.relative_positions_matrix(3, 3, value)


def test_rejects_more_queries_than_keys():
    message = (
        r"Expected at most as many queries as keys: .*"
        r"Received: length_q=5, length_k=3\."
    )
    with pytest.raises(ValueError, match=message):
        reference.relative_positions_matrix(5, 3, 2)
    with pytest.raises(ValueError, match=message):
        reference.dot_product_attention_relative(
            **random_inputs(5, 3), bias=None, max_relative_position=2, allow_memory=True
        )


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_rejects_dropout_rate_out_of_range(rate):
    with pytest.raises(
        ValueError,
        match=r"Expected dropout_rate to be at least 0 and below 1\. "
        rf"Received: dropout_rate={rate}\.",
    ):
        reference.dot_product_attention_relative(
            **random_inputs(), bias=None, max_relative_position=2, dropout_rate=rate
        )


def test_rejects_tables_of_a_wrong_shape():
    with pytest.raises(
        ValueError,
        match=r"Expected table to have 2 \* max_relative_position \+ 1 = 7 rows\. "
        r"Received: shape \(5, 7\) with max_relative_position=3\.",
    ):
        reference.relative_position_embeddings(np.ones((5, 7)), 3, 3, 3)
    for name in ("key_embeddings", "value_embeddings"):
        inputs = random_inputs()
        inputs[name] = np.ones((5, 11))
        with pytest.raises(
            ValueError,
            match=rf"Expected {name} to have 2 \* max_relative_position \+ 1 = 5 rows "
            r"of length 7, the depth of the keys\. Received: shape \(5, 11\) with "
            r"max_relative_position=2\.",
        ):
            reference.dot_product_attention_relative(**inputs, bias=None, max_relative_position=2)


def test_different_lengths_require_allow_memory():
    with pytest.raises(
        ValueError,
        match=r"Expected q, k and v of the same shape: .* Pass allow_memory=True .*"
        r"Received: q \(2, 3, 5, 7\), k \(2, 3, 11, 7\), v \(2, 3, 11, 7\)\.",
    ):
        reference.dot_product_attention_relative(
            **random_inputs(5, 11), bias=None, max_relative_position=2
        )


def test_cache_requires_a_single_query():
    with pytest.raises(
        ValueError,
        match=r"Expected one query \(length 1\) with cache=True\. "
        r"Received: q \(2, 3, 5, 7\)",
    ):
        reference.dot_product_attention_relative(
            **random_inputs(5, 11), bias=None, max_relative_position=2, cache=True
        )


def test_rejects_keys_and_values_of_different_shapes():
    inputs = random_inputs()
    inputs["v"] = inputs["v"][:, :, :2]
    with pytest.raises(
        ValueError,
        match=r"Expected k and v of the same shape\. Received: .*k \(2, 3, 3, 7\), "
        r"v \(2, 3, 2, 7\)\.",
    ):
        reference.dot_product_attention_relative(**inputs, bias=None, max_relative_position=2)


def test_rejects_ranks_other_than_four():
    inputs = random_inputs()
    inputs["q"] = inputs["q"][0]
    with pytest.raises(
        ValueError,
        match=r"Expected q, k and v of shape \[batch, heads, length, depth\]\. "
        r"Received: q \(3, 3, 7\)",
    ):
        reference.dot_product_attention_relative(**inputs, bias=None, max_relative_position=2)
