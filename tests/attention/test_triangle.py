"""Relative terms of short causal sequences on TensorFlow by one product: equal to rows looked up, outputs and gradients."""

import contextlib
import functools

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_relpos.attention import attend, causal_mask
from t2t_relpos.attention.reference import dot_product_attention_relative

if keras.backend.backend() != "tensorflow":
    pytest.skip("TensorFlow's own way to compute", allow_module_level=True)

import tensorflow as tf

from t2t_relpos.attention import _tensorflow_at_once as at_once


@contextlib.contextmanager
def longest(length):
    """Up to this length relative terms are computed by one product; longer ones are looked up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(at_once, "LONGEST_TRIANGLE", length)
        yield


@pytest.fixture
def called(monkeypatch):
    """Lengths of those whose relative terms are computed in this way from now on."""
    lengths, original = [], at_once.labels_of_distances
    monkeypatch.setattr(
        at_once,
        "labels_of_distances",
        lambda length, reach: lengths.append(length) or original(length, reach),
    )
    return lengths


@settings(deadline=None, max_examples=40, derandomize=True)
@given(data=st.data())
def test_equals_rows_that_are_looked_up(data, draw, assert_as_derived):
    length, k = data.draw(st.integers(1, 23)), data.draw(st.integers(1, 29))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    arrays = draw(rng, length, length, k)
    for table in (3, 4):
        if data.draw(st.sampled_from([False, False, True])):
            arrays[table] = None
    kwargs = {}
    if data.draw(st.booleans()):
        kwargs["key_mask"] = tf.constant(rng.random((2, length)) < 0.7)
    if data.draw(st.booleans()):
        kwargs["mask"] = tf.constant(rng.random((length, length)) < 0.7)
    rate = data.draw(st.sampled_from([None, 0.4]))
    weigh = rng.normal(size=(2, 3, length, 7))
    assert_as_derived(arrays, weigh, rate, longest(23), causal=True, **kwargs)


@pytest.mark.parametrize("length, k", [(1, 3), (2, 1), (11, 3), (13, 17)])
def test_equals_the_port_of_t2t(length, k, called, rng, draw):
    query, key, value, key_table, value_table = draw(rng, length, length, k)
    arrays = query, key, value[..., :5], key_table, value_table[:, :5]
    bias = np.where(causal_mask(length, length), 0.0, -1e9)
    outputs, _ = attend(*arrays, causal=True, return_weights=False)
    expected = dot_product_attention_relative(*arrays[:3], bias, *arrays[3:], k, allow_memory=True)
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-12)
    assert called == [length]


def test_the_way_is_chosen_by_length_and_table(called, rng, draw):
    of = functools.partial(attend, return_weights=False)
    of(*draw(rng, at_once.LONGEST_TRIANGLE, at_once.LONGEST_TRIANGLE, 2), causal=True)
    assert called == [at_once.LONGEST_TRIANGLE]
    of(*draw(rng, at_once.LONGEST_TRIANGLE + 1, at_once.LONGEST_TRIANGLE + 1, 2), causal=True)
    of(*draw(rng, 7, 7, 2))
    of(*draw(rng, 7, 7, 2, heads=3), causal=True)
    of(*draw(rng, 7, 11, 2), causal=True)
    of(*draw(rng, 7, 7, 2), causal=True, query_offset=3)
    of(*draw(rng, 7, 7, 0), causal=True)
    attend(*draw(rng, 7, 7, 2), causal=True)
    assert len(called) == 1


def test_unknown_lengths_in_a_graph(rng, draw, outputs_and_gradients):
    specs = [tf.TensorSpec((None, 3, None, depth), tf.float64) for depth in (5, 5, 7)]
    specs += [tf.TensorSpec((7, depth), tf.float64) for depth in (5, 7)]
    with longest(13):
        step = tf.function(
            lambda *xs: outputs_and_gradients(xs, 1.0, causal=True, return_weights=False),
            input_signature=specs,
            autograph=False,
        )
        for lengths in ((1, 1), (5, 5), (13, 13), (14, 14), (5, 7), (7, 5)):
            arrays = draw(rng, *lengths, 3)
            expected = outputs_and_gradients(arrays, 1.0, causal=True, return_weights=False)
            for actual, eager in zip(step(*arrays), expected, strict=True):
                assert isinstance(actual, tf.Tensor), "a sparse gradient"
                np.testing.assert_allclose(actual, eager, rtol=0, atol=1e-11)


def test_a_batch_of_nothing_has_gradients_of_zero(called, rng, draw, outputs_and_gradients):
    arrays = [x[:0] if len(x.shape) == 4 else x for x in draw(rng, 13, 13, 2)]
    for gradient, x in zip(
        outputs_and_gradients(arrays, 1.0, causal=True, return_weights=False)[1:],
        arrays,
        strict=True,
    ):
        np.testing.assert_array_equal(gradient, np.zeros(x.shape))
    assert called == [13, 13]


@pytest.mark.parametrize(
    "dtype, tolerance", [("float32", 2e-6), ("float16", 1e-2), ("bfloat16", 6e-2)]
)
def test_lower_precision_is_near_float64(dtype, tolerance, called, rng, draw, assert_near_float64):
    arrays = draw(rng, 31, 31, 3)
    assert_near_float64(arrays, dtype, tolerance, causal=True)
    assert called == [31, 31, 31, 31]
