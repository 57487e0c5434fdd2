"""Tests dropout factors on TensorFlow for all dtypes, and for known and unknown shapes."""

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("TensorFlow only", allow_module_level=True)

import tensorflow as tf

from t2t_relpos.attention.dropout import SeededDropout
from t2t_relpos.attention.tensorflow.dropout import factors

SEED = tf.constant([7, 11])


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_factors_are_zero_or_the_inverse_of_the_keep_rate(dtype):
    found = factors([13, 17], 0.25, SEED, dtype)
    assert found.dtype == dtype
    assert np.unique(found.numpy().astype("float64")).tolist() == [
        0,
        float(tf.constant(4 / 3, dtype)),
    ]


def test_equal_seeds_give_equal_factors():
    seeds = (SEED, SEED, SEED + 1)
    first, repeated, other = (factors([13, 17], 0.5, seed, "float32") for seed in seeds)
    np.testing.assert_array_equal(first, repeated)
    assert 0.3 < np.mean(first != other) < 0.7


def test_rate_0_keeps_all_and_a_rate_near_1_drops_almost_all():
    assert factors([5, 7], 0.0, SEED, "float32").numpy().tolist() == [[1] * 7] * 5
    assert np.count_nonzero(factors([5, 7], 1 - 1e-9, SEED, "float32")) <= 1


@pytest.mark.parametrize("shape", [(), (7,), (0, 3), (5, 12), (2, 3, 5)])
def test_outputs_with_unknown_shapes(shape):
    x = tf.ones(shape)
    expected = SeededDropout(0.5, SEED)(x)
    assert expected.shape == shape
    for spec in (shape, (None, *shape[1:]) if shape else (), [None] * len(shape), None):
        function = tf.function(
            lambda x: SeededDropout(0.5, SEED)(x), [tf.TensorSpec(spec, tf.float32)]
        )
        assert function.get_concrete_function().output_shapes == tf.TensorShape(spec)
        np.testing.assert_array_equal(function(x), expected)
