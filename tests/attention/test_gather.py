"""Tests of relative terms that gather table rows, and of the gradients of tables."""

import numpy as np
import pytest

from t2t_relpos.attention.gather import scores_by_rows, values_by_rows

IDS = np.clip(np.arange(7) - np.arange(5)[:, None], -2, 2) + 2


@pytest.mark.parametrize("heads", [(), (3,)])
def test_scores_and_values_of_gathered_rows_equal_einsum(heads, rng, precision):
    table = rng.normal(size=(*heads, 5, 11)).astype(precision.dtype)
    rows = np.broadcast_to(table, (3, 5, 11))[:, IDS]
    query, weights = (rng.normal(size=(2, 3, 5, last)).astype(precision.dtype) for last in (11, 7))
    scores, values = scores_by_rows(query, table, IDS), values_by_rows(weights, table, IDS)
    np.testing.assert_allclose(
        scores, np.einsum("bnih,nijh->bnij", query, rows), rtol=0, atol=10 * precision.atol
    )
    np.testing.assert_allclose(
        values, np.einsum("bnij,nijh->bnih", weights, rows), rtol=0, atol=10 * precision.atol
    )


@pytest.mark.parametrize("static_shape", [True, False])
@pytest.mark.parametrize("heads", [(), (3,)])
def test_table_gradient_sums_the_gradients_of_gathered_rows(heads, static_shape, rng, tf):
    from t2t_relpos.attention.tensorflow.lookup import gather_rows

    table = tf.constant(rng.normal(size=(*heads, 5, 11)))
    row_gradients = rng.normal(size=(*heads, 5, 7, 11))

    @tf.function(
        autograph=False,
        input_signature=[tf.TensorSpec(IDS.shape if static_shape else [None, None], tf.int32)],
    )
    def gradient(ids):
        with tf.GradientTape() as tape:
            tape.watch(table)
            loss = tf.reduce_sum(gather_rows(table, ids) * row_gradients)
        return tape.gradient(loss, table)

    expected = np.zeros(table.shape)
    np.add.at(expected, (..., IDS, slice(None)), row_gradients)
    actual = gradient(IDS.astype("int32"))
    assert isinstance(actual, tf.Tensor)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)
