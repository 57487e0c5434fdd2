"""What sampling may draw, against NumPy."""

import numpy as np
import pytest
from keras import ops

from t2t_relpos.decoding.filters import draw, keep_top_k, keep_top_p

ROWS, VOCAB = 5, 11


@pytest.fixture
def logits(rng):
    return rng.normal(size=(ROWS, VOCAB)).astype("float32")


def by_likelihood(row):
    return np.argsort(-row, kind="stable")


def assert_keeps(result, logits, kept):
    """`kept`: the ids of every row; the others are -inf."""
    expected = np.full_like(logits, -np.inf)
    for row, ids in enumerate(kept):
        expected[row, ids] = logits[row, ids]
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("k", [1, 3, 10, 11, 12, 1000])
@pytest.mark.parametrize("convert", [int, ops.convert_to_tensor], ids=["int", "tensor"])
def test_top_k(logits, k, convert):
    assert_keeps(keep_top_k(logits, convert(k)), logits, [by_likelihood(row)[:k] for row in logits])


def test_top_k_among_equals_keeps_the_first():
    logits = np.array([[1, 2, 1, 2, 1], [0, 0, 0, 0, 0]], "float32")
    assert_keeps(keep_top_k(logits, 3), logits, [[0, 1, 3], [0, 1, 2]])


@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("convert", [float, ops.convert_to_tensor], ids=["float", "tensor"])
def test_top_p(logits, p, convert):
    kept = []
    for row in logits.astype("float64"):
        probabilities, order = np.exp(row) / np.exp(row).sum(), by_likelihood(row)
        count = 1
        while count < VOCAB and probabilities[order[:count]].sum() < p:
            count += 1
        kept.append(order[:count])
    assert_keeps(keep_top_p(logits, convert(p)), logits, kept)


def test_top_p_among_equals_keeps_the_first():
    logits = np.log([[0.25, 0.25, 0.25, 0.25]]).astype("float32")
    for p, count in ((0.2, 1), (0.25, 1), (0.3, 2), (0.75, 3), (0.8, 4)):
        assert_keeps(keep_top_p(logits, p), logits, [range(count)])


def test_top_p_after_top_k_is_of_what_is_left():
    logits = np.log([[0.1, 0.4, 0.2, 0.3]]).astype("float32")
    # Of 0.4 and 0.3 the first has more than half, of all ids it has not.
    assert_keeps(keep_top_p(keep_top_k(logits, 2), 0.5), logits, [[1]])
    assert_keeps(keep_top_p(logits, 0.5), logits, [[1, 3]])


def test_draws_the_id_whose_share_holds_the_number():
    logits = np.tile(np.log([[0.5, 1e-30, 0.25, 0.25]]), (7, 1)).astype("float32")
    logits[:, 1] = -np.inf
    uniform = np.array([0.0, 0.25, 0.499, 0.501, 0.749, 0.751, 1 - 2**-24], "float32")
    np.testing.assert_array_equal(draw(logits, uniform), [0, 0, 0, 2, 2, 3, 3])


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-24])
def test_never_draws_what_is_left_out(number, rng):
    # So many ids that sums of their probabilities are rounded.
    logits = rng.normal(size=(3, 30011)).astype("float32")
    allowed = rng.random(logits.shape) < 0.5
    allowed[:, [0, -1]] = False
    logits[~allowed] = -np.inf
    drawn = ops.convert_to_numpy(draw(logits, np.full(3, number, "float32")))
    assert allowed[np.arange(3), drawn].all()
    if number == 0:
        np.testing.assert_array_equal(drawn, allowed.argmax(-1))
