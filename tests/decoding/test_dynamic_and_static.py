"""Compares searches with dynamic sizes, under XLA and under JAX `jit` with eager results."""

import keras
import numpy as np
import pytest
from comparisons import assert_all_close
from keras import ops

from t2t_relpos.decoding import beam_search, sample_search

LIMITS = np.array([4, 3, 4], "int32")
PREFIX = np.array([[3, 0], [0, 0], [2, 4]], "int32")
RULES = {"min_length": 2, "no_repeat_ngram_size": 2, "repetition_penalty": 1.5}


def beam(language, sentences, length, size, results, prefix, limits):
    return beam_search(
        language.step,
        language.start(sentences),
        ops.shape(sentences)[0],
        length,
        beam_size=size,
        num_results=results,
        length_limit=limits,
        prefix=prefix,
        **RULES,
    )


def sample(language, sentences, length, results, prefix, uniform):
    settings = {"num_results": results, "top_k": 3, "top_p": 0.9, "prefix": prefix}
    rows, state = ops.shape(sentences)[0], language.start(sentences)
    return sample_search(language.step, state, rows, length, uniform=uniform, **settings, **RULES)


def test_beam_search_with_dynamic_sizes_and_xla_equals_eager(language, tf):
    expected = beam(language, np.arange(3, dtype="int32"), 4, 5, 3, PREFIX, LIMITS)
    scalar, vector = tf.TensorSpec([], tf.int32), tf.TensorSpec([None], tf.int32)
    graph = tf.function(lambda *args: beam(language, *args)).get_concrete_function(
        vector, scalar, scalar, scalar, tf.TensorSpec([None, None], tf.int32), vector
    )
    numbers = [tf.constant(x) for x in (4, 5, 3)]
    assert_all_close(
        graph(tf.range(3), *numbers, tf.constant(PREFIX), tf.constant(LIMITS)), expected, rtol=1e-5
    )
    xla = tf.function(lambda ids, *args: beam(language, ids, 4, 5, 3, *args), jit_compile=True)
    assert_all_close(
        xla(tf.range(3), tf.constant(PREFIX), tf.constant(LIMITS)), expected, rtol=1e-5
    )


def test_sample_search_with_dynamic_sizes_and_xla_equals_eager(language, rng, tf):
    uniform = rng.random((3, 5, 4), "float32")
    expected = sample(language, np.arange(3, dtype="int32"), 4, 5, PREFIX, uniform)
    scalar, vector = tf.TensorSpec([], tf.int32), tf.TensorSpec([None], tf.int32)
    graph = tf.function(lambda *args: sample(language, *args)).get_concrete_function(
        vector,
        scalar,
        scalar,
        tf.TensorSpec([None, None], tf.int32),
        tf.TensorSpec([None, None, None], tf.float32),
    )
    assert_all_close(
        graph(tf.range(3), tf.constant(4), tf.constant(5), tf.constant(PREFIX), uniform),
        expected,
        rtol=1e-5,
    )
    xla = tf.function(lambda ids, *args: sample(language, ids, 4, 5, *args), jit_compile=True)
    assert_all_close(
        xla(tf.range(3), tf.constant(PREFIX), tf.constant(uniform)), expected, rtol=1e-5
    )


def test_searches_under_jax_jit_equal_eager(language, rng):
    if keras.backend.backend() != "jax":
        pytest.skip("requires JAX")
    import jax

    sentences, uniform = np.arange(3, dtype="int32"), rng.random((3, 5, 4), "float32")
    found = jax.jit(lambda ids, *args: beam(language, ids, 4, 5, 3, *args))(
        sentences, PREFIX, LIMITS
    )
    assert_all_close(found, beam(language, sentences, 4, 5, 3, PREFIX, LIMITS), rtol=1e-5)
    drawn = jax.jit(lambda ids, *args: sample(language, ids, 4, 5, *args))(
        sentences, PREFIX, uniform
    )
    assert_all_close(drawn, sample(language, sentences, 4, 5, PREFIX, uniform), rtol=1e-5)
