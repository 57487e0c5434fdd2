"""Tests of attention with a cache: steps, memory of `flash_attention`, and windows."""

import keras
import numpy as np
import pytest
from keras import ops

from t2t_relpos.layers import RelativeMultiHeadAttention

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
LINEAR = "rematerialized_blocks" if ON_TENSORFLOW else "blocks"


@pytest.fixture
def layers():
    """Returns two layers with the same weights, without and with `flash_attention`."""
    default, flash = (
        RelativeMultiHeadAttention(2, 5, max_relative_position=3, flash_attention=flag)
        for flag in (None, True)
    )
    for layer in (default, flash):
        layer.build((None, None, 6), (None, None, 6))
    flash.set_weights(default.get_weights())
    return default, flash


def normal(rng, *shape):
    return ops.convert_to_tensor(rng.normal(size=shape).astype("float32"))


@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention_of_a_prefill_has_linear_memory(causal, layers, run_log, rng):
    x, cache = normal(rng, 3, 40, 6), ops.zeros((3, 2, 47, 2, 5))
    expected, actual = (
        layer.attend_with_cache(x, x, cache, 0, query_offset=0, causal=causal) for layer in layers
    )
    assert run_log[0] != LINEAR and run_log[1:] == [LINEAR]
    for each in zip(actual, expected, strict=True):
        np.testing.assert_allclose(*map(ops.convert_to_numpy, each), atol=1e-5)


def test_flash_attention_of_projected_keys_has_linear_memory(layers, run_log, rng):
    x, cache = normal(rng, 3, 7, 6), normal(rng, 3, 2, 40, 2, 5)
    expected, actual = (
        layer.attend_with_cache(x, None, cache, query_offset=11)[0] for layer in layers
    )
    assert run_log[0] != LINEAR and run_log[1:] == [LINEAR]
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_flash_attention_with_an_offset_per_entry(layers, rng):
    default, flash = layers
    cache = normal(rng, 3, 2, 11, 2, 5)
    offset = ops.convert_to_tensor([3, 5, 7], "int32")
    x = normal(rng, 3, 1, 6)
    expected, actual = (
        layer.attend_with_cache(x, None, cache, query_offset=offset)[0] for layer in layers
    )
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    x = normal(rng, 3, 2, 6)
    default.attend_with_cache(x, None, cache, query_offset=offset)
    message = "one query for `query_offset` of shape.*one offset for the batch"
    with pytest.raises(ValueError, match=message):
        flash.attend_with_cache(x, None, cache, query_offset=offset)


@pytest.mark.parametrize("causal", [False, True])
def test_cached_attention_applies_the_window(causal, rng):
    layer = RelativeMultiHeadAttention(2, 5, max_relative_position=3, sliding_window=4)
    x = normal(rng, 3, 11, 6)
    expected = layer(x, x, use_causal_mask=causal)
    outputs, _ = layer.attend_with_cache(
        x, x, ops.zeros((3, 2, 11, 2, 5)), 0, query_offset=0, causal=causal
    )
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    if not causal:
        outputs, _ = layer.attend_with_cache(x, None, layer.project_cache(x))
        np.testing.assert_allclose(outputs, expected, atol=1e-5)


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
def test_update_index_of_any_integer_dtype(dtype, layers, rng, tf):
    layer, _ = layers
    x, cache = normal(rng, 3, 1, 6), normal(rng, 3, 2, 300, 2, 5)

    def step(index):
        return layer.attend_with_cache(x, x, cache, index, query_offset=index, causal=True)

    expected = step(tf.constant(255))
    for found in (tf.function(step)(tf.constant(255, dtype)), step(np.array(255, dtype))):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)


def test_graphs_write_caches_without_an_operation_of_xla(layers, rng, tf):
    layer, _ = layers
    x, cache = normal(rng, 3, 2, 6), normal(rng, 3, 2, 7, 2, 5)
    step = tf.function(
        lambda x, cache, index: layer.attend_with_cache(x, x, cache, index, query_offset=index),
        input_signature=[
            tf.TensorSpec((None, None, 6)),
            tf.TensorSpec((None, 2, None, 2, 5)),
            tf.TensorSpec((), tf.int32),
        ],
    )
    graph = step.get_concrete_function().graph
    assert not [op for op in graph.get_operations() if op.type == "XlaDynamicUpdateSlice"]
    for index in (0, 3, 5):
        outputs, found = step(x, cache, index)
        expected = np.array(cache)
        expected[:, 0, index : index + 2] = layer.key_dense(x)
        expected[:, 1, index : index + 2] = layer.value_dense(x)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        wanted, _ = layer.attend_with_cache(x, None, expected, query_offset=index)
        np.testing.assert_allclose(outputs, wanted, atol=1e-5)


def test_steps_have_finite_numbers_only(layers, rng, tf):
    """`enable_check_numerics` raises an error for a constant that is not finite."""
    layer, _ = layers
    x, cache = normal(rng, 3, 1, 6), ops.zeros((3, 2, 4, 2, 5))
    tf.debugging.enable_check_numerics()
    try:
        layer.attend_with_cache(x, x, cache, tf.constant(3))
    finally:
        tf.debugging.disable_check_numerics()
