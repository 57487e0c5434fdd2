"""Tests of call argument errors: batch sizes, masks, positions and offsets."""

import keras
import numpy as np
import pytest
from keras import ops

from t2t_relpos.layers import RelativeMultiHeadAttention, TransformerDecoder

X, Y = np.ones((3, 7, 6), "float32"), np.ones((3, 11, 6), "float32")


@pytest.fixture(scope="module")
def layer():
    made = RelativeMultiHeadAttention(2, 5, max_relative_position=3)
    made(X, Y)
    return made


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            {"value": Y[:1]},
            "Expected `query`, `value` and `key` of the same batch size. Received: batch sizes "
            "3, 1, 1.",
        ),
        (
            {"attention_mask": np.zeros((7, 11), "float32")},
            "Expected `attention_mask` to be boolean, True = attend. Received: dtype float32. "
            "Convert an additive bias (0 and -1e9) with `bias == 0`, and a mask of 1.0 and 0.0 "
            "with `mask > 0`.",
        ),
        (
            {"attention_mask": np.ones((2, 7, 11), bool)},
            "Expected `attention_mask` of shape [B, T, S] = [3, 7, 11] or [T, S] = [7, 11] or "
            "[B, N, T, S] = [3, 2, 7, 11]. Received: shape (2, 7, 11).",
        ),
        (
            {"key_mask": np.ones((3, 7), bool)},
            "Expected `key_mask` of shape [B, S] = [3, 11]. Received: shape (3, 7).",
        ),
        (
            {"query_mask": np.ones((3, 11), bool)},
            "Expected `query_mask` of shape [B, T] = [3, 7]. Received: shape (3, 11).",
        ),
        (
            {"query_offset": 2**40},
            "Expected `query_offset` between -2147483647 and 2147483647. Received: values from "
            "1099511627776 to 1099511627776.",
        ),
        ({"query_offset": 1.5}, "Expected query_offset of an integer dtype. Received: dtype float"),
        (
            {"query_offset": np.array([1, 2, 3])},
            "Expected `query_offset` to be an int or a scalar tensor. Received: shape (3,).",
        ),
        (
            {"query_positions": np.array([4])},
            "Expected `query_positions` with a position for every element: shape [7] or [3, 7]. "
            "Received: shape (1,).",
        ),
        (
            {"key_positions": np.ones((3, 7), "int32")},
            "Expected `key_positions` with a position for every element: shape [11] or [3, 11]. "
            "Received: shape (3, 7).",
        ),
    ],
)
def test_call_rejects_invalid_arguments(layer, arguments, message):
    with pytest.raises(ValueError) as error:
        layer(X, **{"value": Y} | arguments)
    assert message in str(error.value)


def test_call_casts_integer_masks(layer, rng):
    mask = rng.integers(0, 2, (3, 7, 11))
    np.testing.assert_array_equal(
        layer(X, Y, attention_mask=mask), layer(X, Y, attention_mask=mask.astype(bool))
    )


def test_decoder_rejects_different_batch_sizes():
    with pytest.raises(ValueError, match="of the same batch size. Received: batch sizes 3, 1, 1."):
        TransformerDecoder(16, 2, max_relative_position=4)(X, Y[:1])


def test_step_beyond_the_cache_raises(layer):
    cache = layer.start_cache(3, 4)
    message = (
        r"Expected positions in \[0, 4\), the length of the cache. Received: positions from 0 to 4."
        " Start the cache with a larger `max_length`."
    )
    with pytest.raises(ValueError, match=message):
        layer.step(X[:, :1], cache, np.array([0, 4, 1]))


def test_compiled_step_beyond_the_cache_returns_nan(layer):
    def step(position):
        return layer.step(X[:, :1], layer.start_cache(3, 4), position)[0]

    position = np.array([0, 4, 1])
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        outputs = tf.function(step)(tf.constant(position))
    elif keras.backend.backend() == "jax":
        import jax

        outputs = jax.jit(step)(position)
    else:
        pytest.skip("PyTorch runs eagerly, so the step raises an error")
    is_nan = np.isnan(ops.convert_to_numpy(outputs)).all(axis=(1, 2))
    assert is_nan.tolist() == [False, True, False]


def test_step_rejects_an_unbuilt_layer():
    layer = RelativeMultiHeadAttention(2, 5, max_relative_position=3, name="mine")
    with pytest.raises(ValueError, match="Expected a built layer. Received: mine, which has no"):
        layer.step(X[:, :1], layer.start_cache(3, 4), np.zeros(3, "int32"))


@pytest.mark.parametrize("integer", [np.int64(3), np.int32(3)])
def test_constructor_accepts_numpy_integers(integer):
    layer = RelativeMultiHeadAttention(integer, integer, max_relative_position=integer)
    assert layer.get_config()["max_relative_position"] == 3
    assert type(layer.get_config()["num_heads"]) is int


def test_constructor_rejects_huge_tables():
    with pytest.raises(ValueError, match="an integer from 0 to 1,000,000. Received: max_rel.*=10"):
        RelativeMultiHeadAttention(2, 5, max_relative_position=10**9)
