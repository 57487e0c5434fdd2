"""Compares top-k, top-p and the random draw with NumPy."""

import numpy as np
import pytest
from keras import ops

from t2t_relpos.decoding.sample_search import draw, keep_top_k, keep_top_p

ROWS, VOCAB = 5, 11


@pytest.fixture
def logits(rng):
    return rng.normal(size=(ROWS, VOCAB)).astype("float32")


def ids_by_likelihood(row):
    """Returns ids from the most to the least likely. Ids with equal logits stay in order."""
    return np.argsort(-row, kind="stable")


ALL = np.ones((1, 1), bool)


def assert_keeps(result, kept):
    """Asserts that the mask of each row has exactly the ids in `kept`."""
    rows = [np.flatnonzero(row).tolist() for row in ops.convert_to_numpy(result)]
    assert rows == [sorted(ids) for ids in kept]


@pytest.mark.parametrize("k", [1, 3, 10, 11, 12, 1000])
@pytest.mark.parametrize("convert", [int, ops.convert_to_tensor], ids=["int", "tensor"])
def test_keep_top_k_keeps_the_most_likely_ids(logits, k, convert):
    kept = [ids_by_likelihood(row)[:k].tolist() for row in logits]
    assert_keeps(keep_top_k(logits, ALL, convert(k)), kept)


def test_keep_top_k_breaks_ties_by_id():
    logits = np.array([[1, 2, 1, 2, 1], [0, 0, 0, 0, 0]], "float32")
    assert_keeps(keep_top_k(logits, ALL, 3), [[0, 1, 3], [0, 1, 2]])


@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("convert", [float, ops.convert_to_tensor], ids=["float", "tensor"])
def test_keep_top_p_keeps_the_smallest_sufficient_set(logits, p, convert):
    kept = []
    for row in logits.astype("float64"):
        probabilities, order = np.exp(row) / np.exp(row).sum(), ids_by_likelihood(row)
        count = 1
        while count < VOCAB and probabilities[order[:count]].sum() < p:
            count += 1
        kept.append(order[:count].tolist())
    assert_keeps(keep_top_p(logits, ALL, convert(p)), kept)


def test_keep_top_p_breaks_ties_by_id():
    logits = np.log([[0.25, 0.25, 0.25, 0.25]]).astype("float32")
    for p, count in ((0.2, 1), (0.25, 1), (0.3, 2), (0.75, 3), (0.8, 4)):
        assert_keeps(keep_top_p(logits, ALL, p), [range(count)])


def test_keep_top_p_after_top_k_renormalizes():
    logits = np.log([[0.1, 0.4, 0.2, 0.3]]).astype("float32")
    # 0.4 is more than half of 0.4 + 0.3, but less than half of the total.
    assert_keeps(keep_top_p(logits, keep_top_k(logits, ALL, 2), 0.5), [[1]])
    assert_keeps(keep_top_p(logits, ALL, 0.5), [[1, 3]])


def test_filters_ignore_ids_that_are_not_allowed():
    logits, allowed = np.log([[0.1, 0.4, 0.2, 0.3]]), np.array([[True, False, True, False]])
    assert_keeps(keep_top_k(logits, allowed, 1), [[2]])
    assert_keeps(keep_top_k(logits, allowed, 3), [[0, 2]])
    assert_keeps(keep_top_p(logits, allowed, 0.5), [[2]])
    assert_keeps(keep_top_p(logits, allowed, 0.9), [[0, 2]])


def test_draw_inverts_the_cumulative_distribution():
    logits = np.tile(np.log([[0.5, 0.9, 0.25, 0.25]]), (7, 1)).astype("float32")
    allowed = np.array([[True, False, True, True]])
    uniform = np.array([0.0, 0.25, 0.499, 0.501, 0.749, 0.751, 1 - 2**-24], "float32")
    np.testing.assert_array_equal(draw(logits, allowed, uniform), [0, 0, 0, 2, 2, 3, 3])


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-24])
def test_draw_never_returns_excluded_ids(number, rng):
    # With this many ids, cumulative probabilities have rounding errors.
    logits = rng.normal(size=(3, 30011)).astype("float32")
    allowed = rng.random(logits.shape) < 0.5
    allowed[:, [0, -1]] = False
    drawn = ops.convert_to_numpy(draw(logits, allowed, np.full(3, number, "float32")))
    assert allowed[np.arange(3), drawn].all()
    if number == 0:
        np.testing.assert_array_equal(drawn, allowed.argmax(-1))
