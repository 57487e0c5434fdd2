"""Attention of all pairs at once on TensorFlow, relative terms along diagonals: equal to rows looked up for all pairs, outputs and gradients."""

import contextlib
import functools
import sys

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_relpos.attention import attend, causal_mask
from t2t_relpos.attention.dropout import AttentionDropout
from t2t_relpos.attention.reference import dot_product_attention_relative

if keras.backend.backend() != "tensorflow":
    pytest.skip("TensorFlow's own way to compute", allow_module_level=True)

import tensorflow as tf

from t2t_relpos.attention import _tensorflow_at_once as at_once


@contextlib.contextmanager
def constants(**values):
    """Sets constants of the module."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setattr(at_once, name, value)
        yield


# Diagonals wherever a matrix has them, and short stretches, so that there are several.
ALWAYS = {
    "SHORTEST": 0,
    "SHORTEST_CAUSAL": 0,
    "LONGEST_SHORT": 13,
    "SHORT_STRETCH": 3,
    "LONG_STRETCH": 5,
    "LONGEST_TRIANGLE": 0,
}


@pytest.fixture
def always():
    with constants(**ALWAYS):
        yield


def count(monkeypatch):
    """Sizes of the bands that are made from now on."""
    made, original = [], at_once.Band
    monkeypatch.setattr(at_once, "Band", lambda *args: made.append(args[2:]) or original(*args))
    return made


@settings(deadline=None, max_examples=40, derandomize=True)
@given(data=st.data())
def test_equals_rows_that_are_looked_up(data, draw, assert_as_derived):
    length_q, more, k = (data.draw(st.integers(*span)) for span in ((1, 29), (0, 11), (1, 7)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    arrays = draw(rng, length_q, length_q + more, k, heads=data.draw(st.sampled_from([None, 3])))
    for table in (3, 4):
        if data.draw(st.sampled_from([False, False, True])):
            arrays[table] = None
    kwargs = {"causal": data.draw(st.booleans())}
    if data.draw(st.booleans()):
        kwargs["key_mask"] = tf.constant(rng.random((2, length_q + more)) < 0.7)
    if data.draw(st.booleans()):
        mask = rng.random((length_q, length_q + more)) < 0.7
        mask[rng.integers(length_q)] = False  # a query that sees nothing
        kwargs["mask"] = tf.constant(mask)
    rate = data.draw(st.sampled_from([None, 0.4]))
    weigh = rng.normal(size=(2, 3, length_q, 7))
    assert_as_derived(arrays, weigh, rate, constants(**ALWAYS), **kwargs)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(16, 16, 11), (23, 23, 3), (17, 29, 5), (11, 11, 1)])
def test_equals_the_port_of_t2t(lengths, causal, always, monkeypatch, rng, draw):
    made = count(monkeypatch)
    query, key, value, key_table, value_table = draw(rng, *lengths)
    arrays = query, key, value[..., :5], key_table, value_table[:, :5]
    outputs, _ = attend(*arrays, causal=causal, return_weights=False)
    bias = np.where(causal_mask(*lengths[:2]), 0.0, -1e9) if causal else None
    expected = dot_product_attention_relative(
        *arrays[:3], bias, *arrays[3:], lengths[2], allow_memory=True
    )
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-12)
    assert made == [lengths[:2]]


def test_the_way_is_chosen_by_length_and_place(monkeypatch, rng, draw):
    made = count(monkeypatch)
    for causal, length in ((False, 95), (False, 96), (True, 39), (True, 40)):
        attend(*draw(rng, length, length, 2), causal=causal, return_weights=False)
    assert made == [(96, 96), (40, 40)]
    attend(*draw(rng, 96, 128, 2), query_offset=0, return_weights=False)
    attend(*draw(rng, 128, 96, 2), return_weights=False)
    attend(*draw(rng, 96, 96, 81), return_weights=False)
    attend(*draw(rng, 96, 96, 0), return_weights=False)
    attend(*draw(rng, 96, 96, 2))
    assert len(made) == 2


def test_training_takes_all_pairs_at_once_longer(always, monkeypatch, rng, draw):
    made = count(monkeypatch)
    monkeypatch.setattr(at_once, "LONGEST", 23)
    monkeypatch.setattr(at_once, "LONGEST_CAUSAL", 17)
    module = sys.modules["t2t_relpos.attention.attend"]
    monkeypatch.setattr(module, "LONGEST_WHOLE", 13)
    monkeypatch.setattr(module, "LONGEST_WHOLE_CAUSAL", 11)
    for causal, recompute, longest in (
        (False, False, 23),
        (True, False, 17),
        (False, None, 13),
        (True, None, 11),
        (False, True, 0),
    ):
        for length in (longest, longest + 1) if longest else (9,):
            arrays = draw(rng, length, length, 3)
            made.clear()
            attend(*arrays, causal=causal, recompute=recompute, return_weights=False)
            assert made == [(length, length)] * (length == longest)


@pytest.mark.parametrize("causal", [False, True])
def test_unknown_lengths_in_a_graph(causal, always, rng, draw, outputs_and_gradients):
    specs = [tf.TensorSpec((None, 3, None, depth), tf.float64) for depth in (5, 5, 7)]
    specs += [tf.TensorSpec((7, depth), tf.float64) for depth in (5, 7)]
    computed = functools.partial(
        outputs_and_gradients, weigh=1.0, causal=causal, return_weights=False
    )
    step = tf.function(lambda *xs: computed(xs), input_signature=specs, autograph=False)
    for lengths in ((1, 1), (5, 5), (19, 19), (8, 23), (9, 7)):
        arrays = draw(rng, *lengths, 3)
        expected = computed(arrays)
        for actual, eager in zip(step(*arrays), expected, strict=True):
            assert isinstance(actual, tf.Tensor), "a sparse gradient"
            np.testing.assert_allclose(actual, eager, rtol=0, atol=1e-11)


@pytest.mark.parametrize("length", [None, 13])
def test_a_batch_of_nothing_has_gradients_of_zero(length, always, rng, draw, outputs_and_gradients):
    arrays = [x[:0] if len(x.shape) == 4 else x for x in draw(rng, 13, 13, 2)]
    specs = [
        tf.TensorSpec((None, 3, length, x.shape[-1]) if len(x.shape) == 4 else x.shape, tf.float64)
        for x in arrays
    ]
    step = tf.function(
        lambda *xs: outputs_and_gradients(xs, 1.0, return_weights=False),
        input_signature=specs,
        autograph=False,
    )
    for gradient, x in zip(step(*arrays)[1:], arrays, strict=True):
        np.testing.assert_array_equal(gradient, np.zeros(x.shape))


@pytest.mark.parametrize(
    "dtype, tolerance", [("float32", 2e-6), ("float16", 1e-2), ("bfloat16", 6e-2)]
)
def test_lower_precision_is_near_float64(dtype, tolerance, always, rng, draw, assert_near_float64):
    arrays = draw(rng, 31, 31, 3)
    assert_near_float64(arrays, dtype, tolerance)


def test_the_gradient_repeats_the_dropout_of_the_outputs(always, rng, draw, outputs_and_gradients):
    arrays, weigh = draw(rng, 31, 31, 3), rng.normal(size=(2, 3, 31, 7))
    dropout = AttentionDropout(0.4, keras.random.SeedGenerator(5))
    outputs, *gradients = outputs_and_gradients(
        arrays, weigh, dropout=dropout, return_weights=False
    )
    kept = AttentionDropout(0.4, keras.random.SeedGenerator(5))(attend(*arrays)[1])
    labels = np.clip(np.arange(31) - np.arange(31)[:, None], -3, 3) + 3
    rows = arrays[4].numpy()[labels]
    expected = np.einsum("bnij,bnjh->bnih", kept, arrays[2]) + np.einsum(
        "bnij,ijh->bnih", kept, rows
    )
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        gradients[2], np.einsum("bnij,bnih->bnjh", kept, weigh), rtol=0, atol=1e-12
    )
    *_, gradient, _, _ = outputs_and_gradients(arrays, 0.0, dropout=dropout, return_weights=False)
    np.testing.assert_array_equal(gradient, np.zeros(arrays[2].shape))
