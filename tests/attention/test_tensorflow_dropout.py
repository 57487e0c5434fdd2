"""What dropout multiplies by on TensorFlow: of every type and shape, known or not."""

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("TensorFlow's own way to compute", allow_module_level=True)

import tensorflow as tf

from t2t_relpos.attention.dropout import SeededDropout
from t2t_relpos.attention.tensorflow.dropout import factors

SEED = tf.constant([7, 11])


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_factors_are_0_or_scale_up(dtype):
    found = factors([13, 17], 0.25, SEED, dtype)
    assert found.dtype == dtype
    assert np.unique(found.numpy().astype("float64")).tolist() == [
        0,
        float(tf.constant(4 / 3, dtype)),
    ]


def test_factors_repeat_for_a_seed():
    one, again, other = (factors([13, 17], 0.5, seed, "float32") for seed in (SEED, SEED, SEED + 1))
    np.testing.assert_array_equal(one, again)
    assert 0.3 < np.mean(one != other) < 0.7


def test_nothing_is_dropped_at_rate_0_and_hardly_anything_kept_near_1():
    assert factors([5, 7], 0.0, SEED, "float32").numpy().tolist() == [[1] * 7] * 5
    assert np.count_nonzero(factors([5, 7], 1 - 1e-9, SEED, "float32")) <= 1


@pytest.mark.parametrize("shape", [(), (7,), (0, 3), (5, 12), (2, 3, 5)])
def test_unknown_shapes(shape):
    x = tf.ones(shape)
    expected = SeededDropout(0.5, SEED)(x)
    assert expected.shape == shape
    for known in (shape, (None, *shape[1:]) if shape else (), [None] * len(shape), None):
        function = tf.function(
            lambda x: SeededDropout(0.5, SEED)(x), [tf.TensorSpec(known, tf.float32)]
        )
        assert function.get_concrete_function().output_shapes == tf.TensorShape(known)
        np.testing.assert_array_equal(function(x), expected)
