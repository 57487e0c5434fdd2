"""Tests sums over the left tail, with and without an incomplete last chunk of keys."""

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("TensorFlow only", allow_module_level=True)

import tensorflow as tf

from t2t_relpos.attention.tensorflow.band import Band, BandShape, QueryBand


def sum_tail(weights, lengths, k, chunk, prefer_matmul):
    length_q, length_k = lengths
    first = length_k - length_q
    queries = QueryBand(
        BandShape(k, causal=False, chunk=chunk), first + tf.range(length_q), weights.dtype
    )
    return Band(queries, first, *lengths).sum_tail(weights, prefer_matmul=prefer_matmul)


@pytest.mark.parametrize("prefer_matmul", [True, False])
@pytest.mark.parametrize("static_shape", [True, False])
@pytest.mark.parametrize("length_k", [1, 4, 5, 23, 25])
def test_sum_tail_sums_complete_chunks(length_k, static_shape, prefer_matmul):
    k, chunk, length_q = 3, 5, min(length_k, 19)
    weights = np.random.default_rng(0).normal(size=(2, 3, length_q, length_k)).astype("float32")

    @tf.function(input_signature=[tf.TensorSpec(weights.shape if static_shape else [None] * 4)])
    def run(x):
        lengths = (length_q, length_k) if static_shape else tf.unstack(tf.shape(x)[2:])
        return sum_tail(x, lengths, k, chunk, prefer_matmul)

    first = length_k - length_q
    ends = [max(first + i - k, 0) // chunk * chunk for i in range(length_q)]
    expected = np.stack([weights[:, :, i, :end].sum(-1) for i, end in enumerate(ends)], -1)
    np.testing.assert_allclose(run(weights), expected[:, :, None], atol=1e-5)


@pytest.mark.parametrize("prefer_matmul", [True, False])
def test_empty_batch(prefer_matmul):
    sums = sum_tail(tf.zeros([0, 3, 7, 23]), (7, 23), 3, 5, prefer_matmul)
    assert sums.shape == (0, 3, 1, 7)
