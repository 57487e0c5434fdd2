"""Tests of call arguments of other dtypes, shapes and positions than usual."""

import functools

import keras
import numpy as np
import pytest
from compilation import compile_function
from keras import ops
from layer_cases import CASES, random_inputs

from t2t_relpos import _checks
from t2t_relpos.layers import (
    RelativeMultiHeadAttention,
    TransformerDecoder,
)

X, Y = np.ones((3, 7, 6), "float32"), np.ones((3, 11, 6), "float32")
CACHE = np.zeros((3, 2, 9, 2, 5), "float32")


@pytest.fixture(scope="module")
def layer():
    made = RelativeMultiHeadAttention(2, 5, max_relative_position=3)
    made(X, Y)
    return made


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_cached_attention_casts_its_inputs(dtype):
    decoder = TransformerDecoder(16, 2, max_relative_position=4, dtype=dtype)
    decoder(X)
    x = X[:, :1].astype("float16")
    cache = np.zeros((3, 2, 4, 2, 3), "float16")
    arguments = {"self_attention_cache": cache, "self_attention_cache_update_index": 0}
    outputs, _ = decoder(x, **arguments)
    # Of four keys, three are masked. Matrix products of other sizes are rounded differently.
    atol = 1e-6 if dtype == "float32" else 0.02
    np.testing.assert_allclose(
        ops.cast(outputs, "float32"), ops.cast(decoder(x), "float32"), atol=atol
    )
    layer = decoder.self_attention
    outputs, cache = layer.attend_with_cache(x, x, cache, 0, causal=True, query_offset=0)
    assert keras.backend.standardize_dtype(outputs.dtype) == layer.compute_dtype
    assert keras.backend.standardize_dtype(cache.dtype) == "float16"


def test_compiled_write_outside_the_cache_returns_nan(layer):
    def step(index):
        return layer.attend_with_cache(X[:, :1], X[:, :1], CACHE, index)[0]

    for index, is_nan in ((0, False), (9, True), (-1, True)):
        outputs = compile_function(step)(np.array(index))
        assert np.isnan(ops.convert_to_numpy(outputs)).all() == is_nan


@pytest.mark.parametrize("name", ["relative", "relative_window", "relations", "local", "2d"])
def test_padding_masks_of_one_row_apply_to_the_batch(name, rng):
    # The attention of `relative` and `relative_window` is computed by blocks.
    length = 120 if name.startswith("relative") else 20
    case, sizes = CASES[name], dict.fromkeys("TSL", length) | {"H": 4, "W": 5}
    inputs, layer = random_inputs(case.input_names(), rng, sizes), case.make()
    mask = rng.integers(0, 2, (1, *inputs[case.inputs.split()[0]].shape[1:-1])).astype(bool)
    found = {}
    for argument in ("query_mask", "value_mask", "key_mask"):
        found[argument], expected = (
            ops.convert_to_numpy(case.call(functools.partial(layer, **{argument: each}), inputs))
            for each in (mask, np.repeat(mask, 3, axis=0))
        )
        np.testing.assert_array_equal(found[argument], expected)
    np.testing.assert_array_equal(found["key_mask"], found["value_mask"])
    # Masked queries get the bias of the output, which is zero.
    is_zero = (found["query_mask"] == 0).all(-1)
    np.testing.assert_array_equal(is_zero, np.broadcast_to(~mask, is_zero.shape))


def test_symbolic_calls_accept_positional_masks(layer):
    query, value = keras.Input((7, 6)), keras.Input((11, 6))
    masks = [keras.Input((length,), dtype="bool") for length in (7, 11)]
    model = keras.Model([query, value, *masks], layer(query, value, value, *masks))
    query_mask, value_mask = (np.arange(n) < np.array([[n], [4], [5]]) for n in (7, 11))
    expected = layer(X, Y, query_mask=query_mask, value_mask=value_mask)
    np.testing.assert_allclose(model([X, Y, query_mask, value_mask]), expected, atol=1e-6)


def test_a_key_mask_is_checked_once(monkeypatch):
    checked, boolean = [], _checks.boolean

    def record(mask, name):
        if mask is not None:
            checked.append(name)
        boolean(mask, name)

    monkeypatch.setattr(_checks, "boolean", record)
    x = np.ones((2, 7, 6), "float32")
    layer = RelativeMultiHeadAttention(2, 3, max_relative_position=2)
    mask = ops.convert_to_tensor(np.arange(7)[None] < [[5], [7]])
    layer(x, x, key_mask=mask)
    assert checked == ["key_mask"]
