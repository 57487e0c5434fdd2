"""Tests that functions accept NumPy arrays, variables and all tensor types of the backend."""

import keras
import numpy as np
import pytest
from keras import ops

from t2t_relpos.attention import (
    attend,
    causal_mask,
    combine_masks,
    dot_product_attention_relative,
    key_padding_mask,
    relative_attention_inner,
)
from t2t_relpos.layers import Packing


def converters():
    """Returns functions that convert an array to each type, by name of the type."""
    found = {
        "array": np.asarray,
        "tensor": ops.convert_to_tensor,
        "keras variable": lambda x: keras.Variable(x, trainable=x.dtype.kind == "f"),
    }
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        found |= {"tf.Variable": tf.Variable, "tf.constant": tf.constant}
    elif keras.backend.backend() == "jax":
        import jax

        found["jax.Array"] = jax.numpy.asarray
    else:
        import torch

        found["torch.nn.Parameter"] = lambda x: torch.nn.Parameter(
            torch.tensor(x), requires_grad=x.dtype.kind == "f"
        )
    return found


@pytest.fixture(params=converters())
def convert(request):
    return converters()[request.param]


@pytest.fixture
def arrays(draw):
    return [x.astype("float32") for x in draw(7, 7, 2)]


@pytest.mark.parametrize("implementation", ["rows", "band", "by_id", "unrolled_blocks", None])
def test_attend_accepts_all_types(implementation, convert, arrays, rng):
    options = {"implementation": implementation, "return_weights": False}
    masks = {
        "mask": rng.random((2, 1, 7, 7)) < 0.7,
        "key_mask": rng.random((2, 7)) < 0.7,
        "query_mask": rng.random((2, 7)) < 0.7,
    }
    expected, _ = attend(*arrays, **masks, **options, query_offset=1)
    masks = {name: convert(x) for name, x in masks.items()}
    offset = convert(np.array(1, "int32"))
    outputs, _ = attend(*map(convert, arrays), **masks, **options, query_offset=offset)
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-5)


def test_ports_accept_all_types(convert, arrays, rng):
    bias = np.where(rng.random((2, 1, 7, 7)) < 0.7, 0, -1e9).astype("float32")
    q, k, v, *tables = arrays
    expected = dot_product_attention_relative(q, k, v, bias, *tables, 2)
    outputs = dot_product_attention_relative(*map(convert, (q, k, v, bias, *tables)), 2)
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-5)
    rows = rng.normal(size=(7, 7, 5)).astype("float32")
    expected = relative_attention_inner(q, k, rows, True)
    outputs = relative_attention_inner(*map(convert, (q, k, rows)), True)
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["mask", "key_mask", "query_mask"])
def test_attend_rejects_float_masks(name, draw):
    query, key, value, *tables = draw(3, 3, 2)
    mask = np.zeros((3, 3) if name == "mask" else (query.shape[0], 3), "float32")
    message = f"Expected `{name}` to be boolean, True = attend. Received: dtype float32. Convert"
    with pytest.raises(ValueError, match=message):
        attend(query, key, value, *tables, **{name: mask})


def test_mask_functions_reject_float_masks():
    bias = np.where(np.tri(3), 0.0, -1e9)
    for function in (combine_masks, key_padding_mask, Packing):
        with pytest.raises(ValueError, match="Expected `mask` to be boolean"):
            function(bias)


@pytest.mark.parametrize(
    "offset, message", [(2**40, "between -2147483647"), (1.5, "integer dtype")]
)
def test_functions_reject_invalid_offsets(offset, message, draw):
    with pytest.raises(ValueError, match=message):
        causal_mask(3, 3, offset)
    with pytest.raises(ValueError, match=message):
        attend(*draw(3, 3, 2), query_offset=offset)
