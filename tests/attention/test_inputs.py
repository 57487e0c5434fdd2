"""Tests that functions accept tensors and variables of the backend as well as NumPy arrays."""

import keras
import numpy as np
import pytest
from keras import ops

from t2t_relpos.attention import (
    attend,
    dot_product_attention_relative,
    relative_attention_inner,
)


def is_float(x):
    return x.dtype.kind == "f"


def variable_of_the_backend(x):
    """Returns an array as a tf.Variable, a jax.Array or a torch.nn.Parameter."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.Variable(x)
    if keras.backend.backend() == "jax":
        import jax

        return jax.numpy.asarray(x)
    import torch

    return torch.nn.Parameter(torch.tensor(x), requires_grad=is_float(x))


CONVERTERS = {
    "tensor": ops.convert_to_tensor,
    "keras variable": lambda x: keras.Variable(x, trainable=is_float(x)),
    "variable of the backend": variable_of_the_backend,
}


@pytest.fixture(params=CONVERTERS)
def convert(request):
    return CONVERTERS[request.param]


@pytest.fixture
def arrays(draw):
    return [x.astype("float32") for x in draw(7, 7, 2)]


@pytest.mark.parametrize("implementation", ["rows", "by_id", "blocks", None])
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
