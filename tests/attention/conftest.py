"""What tests of TensorFlow's ways to attend share."""

import contextlib

import keras
import numpy as np
import pytest

from t2t_relpos.attention import attend
from t2t_relpos.attention.dropout import AttentionDropout


@pytest.fixture(scope="session")
def draw():
    """`draw(rng, length_q, length_k, k)`: queries, keys, values and two tables, or a table for each of 3 `heads`."""

    def drawn(rng, length_q, length_k, k, heads=None, dtype="float64"):
        import tensorflow as tf

        lead = () if heads is None else (heads,)
        shapes = [(2, 3, length_q, 5), (2, 3, length_k, 5), (2, 3, length_k, 7)]
        shapes += [(*lead, 2 * k + 1, 5), (*lead, 2 * k + 1, 7)]
        return [tf.constant(rng.normal(size=shape), dtype) for shape in shapes]

    return drawn


@pytest.fixture(scope="session")
def outputs_and_gradients():
    """`outputs_and_gradients(arrays, weigh, ...)`: outputs, weights if they are returned, and the gradients of a sum of both by the
    arrays that are there; with `of_weights=False` of outputs alone.
    """

    def computed(arrays, weigh, of_weights=True, **kwargs):
        import tensorflow as tf

        given = [x for x in arrays if x is not None]
        with tf.GradientTape() as tape:
            tape.watch(given)
            outputs, weights = attend(*arrays, **kwargs)
            loss = tf.reduce_sum(outputs * weigh)
            if weights is not None and of_weights:
                loss += tf.reduce_sum(weights**2)
        return [outputs, *(() if weights is None else (weights,)), *tape.gradient(loss, given)]

    return computed


@pytest.fixture(scope="session")
def derived(outputs_and_gradients):
    """`derived(arrays, weigh, ...)`: outputs and gradients of them as TensorFlow derives them: where weights are returned, no way has a
    gradient that is written by hand.
    """

    def computed(arrays, weigh, **kwargs):
        outputs, _, *gradients = outputs_and_gradients(arrays, weigh, of_weights=False, **kwargs)
        return [outputs, *gradients]

    return computed


@pytest.fixture(scope="session")
def assert_as_derived(outputs_and_gradients, derived):
    """`assert_as_derived(arrays, weigh, rate, way, ...)`: outputs and gradients are as TensorFlow derives them, with dropout at a rate, or
    without; `way` is a context for the former.
    """

    def check(arrays, weigh, rate, way=None, **kwargs):
        def by(function, **settings):
            dropout = rate and AttentionDropout(rate, keras.random.SeedGenerator(5))
            return function(arrays, weigh, dropout=dropout, **kwargs, **settings)

        with way or contextlib.nullcontext():
            ours = by(outputs_and_gradients, return_weights=False)
        for actual, expected in zip(ours, by(derived), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-11)

    return check


@pytest.fixture(scope="session")
def assert_near_float64(outputs_and_gradients):
    """`assert_near_float64(arrays, dtype, tolerance, ...)`: outputs and gradients of a dtype are of it, and near those of float64."""

    def check(arrays, dtype, tolerance, **kwargs):
        import tensorflow as tf

        expected = outputs_and_gradients(arrays, 1.0, return_weights=False, **kwargs)
        lower = outputs_and_gradients(
            [tf.cast(x, dtype) for x in arrays], 1.0, return_weights=False, **kwargs
        )
        for actual, exact in zip(lower, expected, strict=True):
            assert actual.dtype == dtype
            error = np.abs(tf.cast(actual, tf.float64) - exact).max()
            assert error < tolerance * np.abs(exact).max()

    return check
