"""What tests of TensorFlow's ways to attend share."""

import pytest

from t2t_relpos.attention import attend


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
    arrays that are there.
    """

    def computed(arrays, weigh, **kwargs):
        import tensorflow as tf

        given = [x for x in arrays if x is not None]
        with tf.GradientTape() as tape:
            tape.watch(given)
            outputs, weights = attend(*arrays, **kwargs)
            loss = tf.reduce_sum(outputs * weigh)
            if weights is not None:
                loss += tf.reduce_sum(weights**2)
        return [outputs, *(() if weights is None else (weights,)), *tape.gradient(loss, given)]

    return computed


@pytest.fixture(scope="session")
def derived():
    """`derived(arrays, weigh, ...)`: outputs and gradients of them as TensorFlow derives them: where weights are returned, no way has a
    gradient that is written by hand.
    """

    def computed(arrays, weigh, **kwargs):
        import tensorflow as tf

        given = [x for x in arrays if x is not None]
        with tf.GradientTape() as tape:
            tape.watch(given)
            outputs, _ = attend(*arrays, **kwargs)
            loss = tf.reduce_sum(outputs * weigh)
        return [outputs, *tape.gradient(loss, given)]

    return computed
