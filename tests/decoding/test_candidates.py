import numpy as np
import pytest
from keras import ops

from t2t_relpos.backend import top_k
from t2t_relpos.decoding.beam_search import best_candidates

BATCH, BEAMS = 5, 3
ALL_ACTIVE = np.ones((BATCH, BEAMS), bool)


def assert_best(found, scores, offsets, never_id, **tolerances):
    """Asserts that sums, beams and ids are the first seven after sorting all candidates."""
    all_sums = np.asarray(scores).astype("float64").copy()
    if never_id is not None:
        all_sums[:, never_id] = -np.inf
    all_sums = all_sums.reshape(BATCH, BEAMS, -1) + offsets[..., None]
    vocab_size, all_sums = all_sums.shape[-1], all_sums.reshape(BATCH, -1)
    order = np.argsort(-all_sums, axis=-1, kind="stable")[:, :7]
    sums, beams, ids, is_valid = found
    assert ops.convert_to_numpy(is_valid).all()
    np.testing.assert_allclose(sums, np.take_along_axis(all_sums, order, -1), **tolerances)
    np.testing.assert_array_equal(beams, order // vocab_size)
    np.testing.assert_array_equal(ids, order % vocab_size)


@pytest.mark.parametrize("never_id", [None, 0, 70])
@pytest.mark.parametrize("vocab_size", [89, 521, 1000, 4096])
def test_best_candidates_equals_full_sort(vocab_size, never_id, rng):
    scores = rng.normal(size=(BATCH * BEAMS, vocab_size)).astype("float32")
    scores[0, 64:80] = 9.0 + np.arange(16)  # the best candidates are adjacent
    scores[:, 0] = 50.0
    offsets = rng.normal(size=(BATCH, BEAMS)).astype("float32")
    is_active = ALL_ACTIVE.copy()
    is_active[2, 1:] = False
    found = best_candidates(scores, offsets, is_active, 7, never_id=never_id)
    active_offsets = np.where(is_active, offsets, -np.inf)
    assert_best(found, scores, active_offsets, never_id, rtol=1e-6)


@pytest.mark.parametrize("vocab_size", [89, 521, 1000])
@pytest.mark.parametrize("normalize", [False, True])
def test_best_candidates_prefers_excluded_ids_to_forbidden_ones(vocab_size, normalize):
    """Ids may have no probability, but the others are forbidden or belong to inactive beams."""
    scores = np.full((3, vocab_size), -np.inf if normalize else -1e20, "float32")
    is_active, allowed = np.array([[False, True, False]]), np.ones(vocab_size, bool)
    scores[1, 7] = 2.0
    scores[[0, 2]] = scores[1, 5] = 3.0
    allowed[5] = False
    forbidden = {"never_id": 5} if normalize else {"allowed": allowed[None]}
    found = best_candidates(
        scores, np.zeros((1, 3), "float32"), is_active, 6, normalize=normalize, **forbidden
    )
    _, beams, ids, is_valid = (ops.convert_to_numpy(x)[0] for x in found)
    assert is_valid.all() and (beams == 1).all()
    assert ids[0] == 7 and 5 not in ids and len(set(ids)) == 6


@pytest.mark.parametrize("vocab_size", [5, 1000])
def test_best_candidates_marks_missing_ones(vocab_size):
    allowed = np.zeros((2, vocab_size), bool)
    allowed[0, 3] = allowed[1, 4] = True
    scores, is_active = np.zeros((2, vocab_size), "float32"), np.array([[True, False]])
    found = best_candidates(scores, scores[:1, :2], is_active, 4, allowed=allowed)
    assert ops.convert_to_numpy(found.is_valid).tolist() == [[True, False, False, False]]
    assert int(found.ids[0, 0]) == 3


def test_best_candidates_with_equal_scores_are_distinct(rng):
    scores = rng.integers(0, 2, size=(BATCH * BEAMS, 640)).astype("float32")
    offsets = np.zeros((BATCH, BEAMS), "float32")
    sums, beams, ids, _ = best_candidates(scores, offsets, ALL_ACTIVE, 11)
    np.testing.assert_array_equal(sums, np.ones((BATCH, 11)))
    indices = ops.convert_to_numpy(beams) * 640 + ops.convert_to_numpy(ids)
    assert all(len(set(row)) == 11 for row in indices.tolist())
    rows = np.arange(BATCH)[:, None]
    np.testing.assert_array_equal(scores.reshape(BATCH, -1)[rows, indices], 1.0)


def test_best_candidates_of_an_empty_batch_is_empty():
    scores, offsets = np.zeros((0, 640), "float32"), np.zeros((0, BEAMS), "float32")
    empty = best_candidates(scores, offsets, ALL_ACTIVE[:0], 5)
    assert [tuple(x.shape) for x in empty] == [(0, 5)] * 4


@pytest.mark.parametrize("shift", [0.0, 59.0, -3000.0, 3000.0])
@pytest.mark.parametrize("vocab_size", [89, 1000, 1009])
def test_best_candidates_normalizes_logits(vocab_size, shift, rng):
    """Large shifts would underflow or overflow a softmax that doesn't subtract the maximum."""
    logits = (rng.normal(size=(BATCH * BEAMS, vocab_size)) + shift).astype("float32")
    logits[1] -= 200.0  # one row with a different offset
    exact = logits.astype("float64") - logits.max(-1, keepdims=True)
    log_probs = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    offsets = rng.normal(size=(BATCH, BEAMS)).astype("float32")
    found = best_candidates(logits, offsets, ALL_ACTIVE, 7, never_id=3, normalize=True)
    assert_best(found, log_probs, offsets, 3, atol=2e-5 if abs(shift) < 100 else 1e-3)


@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("size", [7, 1009])
def test_top_k_breaks_ties_by_index(size, k, rng):
    x = rng.integers(-3, 3, size=(5, size)).astype("float32")
    values, indices = top_k(x, k)
    expected = np.argsort(-x, axis=-1, kind="stable")[:, :k]
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, axis=-1))


def test_top_k_of_an_empty_batch_is_empty():
    values, indices = top_k(np.zeros((0, 7), "float32"), 3)
    assert tuple(values.shape) == tuple(indices.shape) == (0, 3)
