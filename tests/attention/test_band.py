"""The matrix of pairs and its diagonals, on TensorFlow: sums of what is far, with a rest of keys or without, are sums of entries."""

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("TensorFlow's own way to compute", allow_module_level=True)

import tensorflow as tf

from t2t_relpos.attention._tensorflow_diagonals import Band, Diagonals


def sums_of_far(pairs, length_q, length_k, reach, stretch, **kwargs):
    first = length_k - length_q
    diagonals = Diagonals(first + tf.range(length_q), reach, False, stretch, pairs.dtype)
    return Band(diagonals, first, length_q, length_k).far(pairs, **kwargs)


@pytest.mark.parametrize("by_product", [True, False])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("length_k", [1, 4, 5, 23, 25])
def test_far_are_whole_stretches(length_k, known, by_product):
    reach, stretch, length_q = 3, 5, min(length_k, 19)
    pairs = np.random.default_rng(0).normal(size=(2, 3, length_q, length_k)).astype("float32")
    function = tf.function(
        lambda x: sums_of_far(
            x,
            *((length_q, length_k) if known else tf.unstack(tf.shape(x)[2:])),
            reach,
            stretch,
            by_product=by_product,
        ),
        input_signature=[tf.TensorSpec(pairs.shape if known else [None] * 4)],
    )
    first = length_k - length_q
    whole = [max(first + i - reach, 0) // stretch * stretch for i in range(length_q)]
    expected = np.stack([pairs[:, :, i, :number].sum(-1) for i, number in enumerate(whole)], -1)[
        :, :, None
    ]
    np.testing.assert_allclose(function(pairs), expected, atol=1e-5)


@pytest.mark.parametrize("by_product", [True, False])
def test_of_no_sentences_there_is_nothing_far(by_product):
    assert sums_of_far(tf.zeros([0, 3, 7, 23]), 7, 23, 3, 5, by_product=by_product).shape == (
        0,
        3,
        1,
        7,
    )
