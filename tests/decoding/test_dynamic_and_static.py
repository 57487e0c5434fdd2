"""Compares searches with dynamic sizes, under XLA and under JAX `jit` with eager results."""

import keras
import numpy as np
import pytest
from comparisons import assert_all_close
from keras import ops

from t2t_relpos.decoding import beam_search, sample_search

LIMITS = np.array([4, 3, 4], "int32")
PREFIX = np.array([[3, 0], [0, 0], [2, 4]], "int32")
UNIFORM = np.random.default_rng(20180401).random((3, 5, 4), "float32")
SENTENCES = np.arange(3, dtype="int32")
RULES = {"min_length": 2, "no_repeat_ngram_size": 2, "repetition_penalty": 1.5}


def beam(language, sentences, length, results, size, prefix, limits):
    settings = {"beam_size": size, "num_results": results, "prefix": prefix, "length_limit": limits}
    rows, state = ops.shape(sentences)[0], language.start(sentences)
    rules = RULES | {"min_length": length // 2}
    return beam_search(language.step, state, rows, length, **settings, **rules)


def sample(language, sentences, length, results, prefix, uniform):
    settings = {"num_results": results, "top_k": length - 1, "top_p": 0.9, "prefix": prefix}
    rows, state = ops.shape(sentences)[0], language.start(sentences)
    return sample_search(language.step, state, rows, length, uniform=uniform, **settings, **RULES)


searches = pytest.mark.parametrize(
    "search, sizes, arrays",
    [(beam, (4, 3, 5), (PREFIX, LIMITS)), (sample, (4, 5), (PREFIX, UNIFORM))],
    ids=["beam", "sample"],
)


@searches
def test_search_with_dynamic_sizes_and_xla_equals_eager(language, search, sizes, arrays, tf):
    expected = search(language, SENTENCES, *sizes, *arrays)
    dtypes = ("int64", "int32", "int64")  # both are supported
    tensors = [tf.constant(size, dtype) for size, dtype in zip(sizes, dtypes)]
    arguments = [tf.constant(x) for x in (SENTENCES, *tensors, *arrays)]
    specs = [tf.TensorSpec([None] * x.shape.rank, x.dtype) for x in arguments]
    dynamic = tf.function(lambda *args: search(language, *args), input_signature=specs)
    assert_all_close(dynamic(*arguments), expected, rtol=1e-5)
    xla = tf.function(lambda ids, *args: search(language, ids, *sizes, *args), jit_compile=True)
    assert_all_close(xla(SENTENCES, *arrays), expected, rtol=1e-5)


@searches
def test_search_under_jax_jit_equals_eager(language, search, sizes, arrays):
    if keras.backend.backend() != "jax":
        pytest.skip("requires JAX")
    import jax

    compiled = jax.jit(lambda ids, *args: search(language, ids, *sizes, *args))
    expected = search(language, SENTENCES, *sizes, *arrays)
    assert_all_close(compiled(SENTENCES, *arrays), expected, rtol=1e-5)
