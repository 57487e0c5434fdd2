"""Attention of short sequences on TensorFlow, its gradient written by hand: equal to what TensorFlow derives itself of rows looked up."""

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


@pytest.fixture(autouse=True)
def rows_only(monkeypatch):
    monkeypatch.setattr(at_once, "LONGEST_TRIANGLE", 0)


@pytest.fixture
def called(monkeypatch):
    """Shapes of the labels of which terms are made from now on."""
    shapes, original = [], at_once.RowTerms
    monkeypatch.setattr(
        at_once,
        "RowTerms",
        lambda labels, table: shapes.append(tuple(labels.shape)) or original(labels, table),
    )
    return shapes


@settings(deadline=None, max_examples=60, derandomize=True)
@given(data=st.data())
def test_equals_what_tensorflow_derives(data, draw, assert_as_derived):
    length_q, length_k, k = (data.draw(st.integers(*span)) for span in ((1, 23), (1, 23), (0, 7)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    arrays = draw(rng, length_q, length_k, k, heads=data.draw(st.sampled_from([None, 3])))
    for table in (3, 4):
        if data.draw(st.sampled_from([False, False, True])):
            arrays[table] = None
    kwargs = {"causal": data.draw(st.booleans())}
    if data.draw(st.booleans()):
        # Queries may stand before all keys, and see none.
        kwargs["query_offset"] = data.draw(st.integers(-3, length_k))
    if data.draw(st.booleans()):
        kwargs["key_mask"] = tf.constant(rng.random((2, length_k)) < 0.7)
    if data.draw(st.booleans()):
        kwargs["mask"] = tf.constant(rng.random((2, 3, length_q, length_k)) < 0.7)
    rate = data.draw(st.sampled_from([None, 0.4]))
    weigh = rng.normal(size=(2, 3, length_q, 7))
    assert_as_derived(arrays, weigh, rate, **kwargs)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(1, 1, 3), (7, 7, 2), (17, 17, 5), (11, 17, 3), (2, 19, 5)])
def test_equals_the_port_of_t2t(lengths, causal, called, rng, draw):
    query, key, value, key_table, value_table = draw(rng, *lengths)
    arrays = query, key, value[..., :5], key_table, value_table[:, :5]
    outputs, _ = attend(*arrays, causal=causal, return_weights=False)
    bias = np.where(causal_mask(*lengths[:2]), 0.0, -1e9) if causal else None
    expected = dot_product_attention_relative(
        *arrays[:3], bias, *arrays[3:], lengths[2], allow_memory=True
    )
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-12)
    assert called == [lengths[:2]] * 2


@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_unknown_lengths_in_a_graph(causal, heads, rng, draw, outputs_and_gradients, derived):
    """Of all ways in turns, and of queries that stand before all keys."""
    specs = [tf.TensorSpec((None, 3, None, depth), tf.float64) for depth in (5, 5, 7)]
    specs += [
        tf.TensorSpec((*((heads,) if heads else ()), 7, depth), tf.float64) for depth in (5, 7)
    ]
    computed = functools.partial(
        outputs_and_gradients, weigh=1.0, causal=causal, return_weights=False
    )
    step = tf.function(lambda *xs: computed(xs), input_signature=specs, autograph=False)
    for lengths in ((1, 1), (5, 5), (13, 13), (5, 7), (7, 5), (41, 41), (97, 97)):
        arrays = draw(rng, *lengths, 3, heads=heads)
        for actual, expected in zip(
            step(*arrays), derived(arrays, 1.0, causal=causal), strict=True
        ):
            assert isinstance(actual, tf.Tensor), "a sparse gradient"
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize("length", [None, 13])
def test_a_batch_of_nothing_has_gradients_of_zero(length, heads, rng, draw, outputs_and_gradients):
    arrays = [x[:0] if i < 3 else x for i, x in enumerate(draw(rng, 13, 13, 2, heads=heads))]
    specs = [
        tf.TensorSpec((None, 3, length, x.shape[-1]) if i < 3 else x.shape, tf.float64)
        for i, x in enumerate(arrays)
    ]
    step = tf.function(
        lambda *xs: outputs_and_gradients(xs, 1.0, return_weights=False),
        input_signature=specs,
        autograph=False,
    )
    for gradient, x in zip(step(*arrays)[1:], arrays, strict=True):
        np.testing.assert_array_equal(gradient, np.zeros(x.shape))


@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize(
    "dtype, tolerance", [("float32", 2e-6), ("float16", 1e-2), ("bfloat16", 6e-2)]
)
def test_lower_precision_is_near_float64(dtype, tolerance, heads, rng, draw, assert_near_float64):
    arrays = draw(rng, 31, 31, 3, heads=heads)
    assert_near_float64(arrays, dtype, tolerance)


@pytest.mark.parametrize("causal", [False, True])
def test_second_derivatives(causal, rng, draw):
    """Of short sequences in each of the ways, as TensorFlow derives them of rows looked up."""
    arrays = draw(rng, 11, 11, 3)

    def of(**kwargs):
        with tf.GradientTape() as outer:
            outer.watch(arrays)
            with tf.GradientTape() as inner:
                inner.watch(arrays)
                outputs = tf.reduce_sum(attend(*arrays, causal=causal, **kwargs)[0] ** 2)
            total = tf.add_n([tf.reduce_sum(x**2) for x in inner.gradient(outputs, arrays)])
        return outer.gradient(total, arrays)

    expected = of()
    for longest, shortest in ((0, 10**6), (39, 10**6), (0, 0)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(at_once, "LONGEST_TRIANGLE", longest)
            patch.setattr(at_once, "SHORTEST", shortest)
            patch.setattr(at_once, "SHORTEST_CAUSAL", shortest)
            patch.setattr(at_once, "SHORT_STRETCH", 3)
            for actual, x in zip(of(return_weights=False), expected, strict=True):
                np.testing.assert_allclose(actual, x, rtol=0, atol=1e-9 * np.abs(x).max())
