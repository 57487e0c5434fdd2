"""Tests of `t2t_relpos.attention.tensorflow`: dropout factors and uses of private TensorFlow."""

import gc
import inspect
import weakref

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("TensorFlow only", allow_module_level=True)

import tensorflow as tf

from t2t_relpos.attention import attend, dispatch
from t2t_relpos.attention.dropout import SeededDropout
from t2t_relpos.backend import dropout_factors
from t2t_relpos.backend import tensorflow as tensorflow_backend

SEED = tf.constant([7, 11])


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_dropout_factors_are_zero_or_the_inverse_of_the_keep_rate(dtype):
    found = dropout_factors([13, 17], 0.25, SEED, dtype)
    assert found.dtype == dtype
    inverse = float(tf.constant(4 / 3, dtype))
    assert np.unique(found.numpy().astype("float64")).tolist() == [0, inverse]


def test_dropout_rate_0_keeps_all_and_a_rate_near_1_drops_almost_all():
    assert dropout_factors([5, 7], 0.0, SEED, "float32").numpy().tolist() == [[1] * 7] * 5
    assert np.count_nonzero(dropout_factors([5, 7], 1 - 1e-9, SEED, "float32")) <= 1


@pytest.mark.parametrize("shape", [(), (7,), (0, 3), (5, 12), (2, 3, 5)])
def test_dropout_with_unknown_shapes(shape):
    dropout, x = SeededDropout(0.5, SEED), tf.ones(shape)
    expected = dropout(x)
    assert expected.shape == shape
    for spec in (shape, (None, *shape[1:]) if shape else (), [None] * len(shape), None):
        function = tf.function(lambda x: dropout(x), [tf.TensorSpec(spec, tf.float32)])
        assert function.get_concrete_function().output_shapes == tf.TensorShape(spec)
        np.testing.assert_array_equal(function(x), expected)


def test_xla_is_detected_in_nested_functions():
    for jit_compile in (False, True):
        inner = tf.function(
            lambda x: tf.fill([2], x if tensorflow_backend.is_compiled_by_xla() else -x)
        )
        outer = tf.function(lambda x, inner=inner: inner(x), jit_compile=jit_compile)
        assert outer(tf.ones([])).numpy().tolist() == [1.0 if jit_compile else -1.0] * 2
    assert not tensorflow_backend.is_compiled_by_xla()


def test_shared_function_is_not_inlined():
    shared = tensorflow_backend.shared_function(lambda x: x + 1)
    outer = tf.function(lambda x: shared(shared(x))).get_concrete_function(tf.TensorSpec([]))
    functions = outer.graph.as_graph_def().library.function
    assert len(functions) == 1, "one body for both calls"
    assert functions[0].attr["_noinline"].b


def test_shared_function_keeps_a_limited_number_of_bodies(monkeypatch):
    monkeypatch.setattr(tensorflow_backend, "MAX_BODIES", 3)
    bodies = weakref.WeakSet()

    def body(x):
        bodies.add(tf.compat.v1.get_default_graph())
        return x + 1

    shared = tensorflow_backend.shared_function(body)
    for length in range(1, 12):
        function = tf.function(lambda x: shared(x))
        assert function(tf.zeros(length)).numpy().sum() == length
    del function
    gc.collect()
    assert len(bodies) <= 3


def test_autograph_converts_few_functions_of_the_library(draw, monkeypatch):
    """Converting all of them takes several times as long as tracing `attend`."""
    files, select = set(), dispatch.select

    def record(*arguments):
        files.update(frame.filename for frame in inspect.stack())
        return select(*arguments)

    monkeypatch.setattr(dispatch, "select", record)
    arrays = draw(5, 5, 2)
    outputs = tf.function(lambda *xs: attend(*xs)[0])(*arrays)
    assert sum("__autograph_generated_file" in name for name in files) == 3, "lambda, two of attend"
    np.testing.assert_allclose(outputs, attend(*arrays)[0], atol=1e-12)


def test_autograph_converts_a_dropout_function(draw):
    def dropout(weights):
        if tf.reduce_sum(weights) > 0:
            weights = 2 * weights
        return weights

    arrays = draw(5, 5, 2)
    outputs = tf.function(lambda *xs: attend(*xs, dropout=dropout)[0])(*arrays)
    np.testing.assert_allclose(outputs, 2 * attend(*arrays)[0], atol=1e-12)
