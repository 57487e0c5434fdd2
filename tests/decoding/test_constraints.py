"""Tests each constraint by its mask, and that disabled ones are not computed."""

import functools
import importlib

import numpy as np
import pytest
from keras import ops
from languages import STATE, constant_step

from t2t_relpos.decoding import beam_search, greedy_search, sample_search
from t2t_relpos.decoding.constraints import Constraints, checked_constraints, next_ids

VOCAB = 7
IDS = np.array([[3, 4, 3, 4, 0], [5, 5, 5, 6, 0]], "int32")
POSITION = 4  # index of the next id, the last of five
ENABLED = (
    {"min_length": 1},
    {"prefix": IDS},
    {"no_repeat_ngram_size": 1},
    {"repetition_penalty": 0.9},
)


def allowed_ids(ids, position, **rules):
    """Returns the sets of allowed ids of each row, for equal logits."""
    found = next_ids(np.zeros((len(ids), VOCAB), "float32"), ids, position, Constraints(**rules))
    allowed = np.broadcast_to(ops.convert_to_numpy(found.allowed), (len(ids), VOCAB))
    return [set(np.flatnonzero(row)) for row in allowed]


def test_padding_is_never_allowed():
    assert allowed_ids(IDS, POSITION, pad_id=2) == 2 * [{0, 1, 3, 4, 5, 6}]


@pytest.mark.parametrize("min_length", [4, 5, np.int32(4), np.int32(5)], ids=repr)
@pytest.mark.parametrize("end_ids", [(1,), (1, 3)])
def test_min_length_forbids_earlier_ends(min_length, end_ids):
    rules = {"min_length": ops.convert_to_tensor(min_length), "end_ids": end_ids}
    forbidden = {0, *end_ids} if min_length > POSITION else {0}
    assert allowed_ids(IDS, POSITION, **rules) == 2 * [set(range(VOCAB)) - forbidden]


def test_repetition_penalty_changes_logits_of_previous_ids(rng):
    logits = rng.normal(size=(2, VOCAB)).astype("float32")
    expected = logits.astype("float64")
    for row, tokens in enumerate(({3, 4}, {5, 6})):
        for token in tokens:  # not padding
            old = expected[row, token]
            expected[row, token] = old / 2.5 if old > 0 else old * 2.5
    expected -= np.log(np.exp(expected).sum(-1, keepdims=True))
    found = next_ids(logits, IDS, POSITION, Constraints(repetition_penalty=2.5))
    np.testing.assert_allclose(found.log_probs, expected, atol=1e-5)


def forbidden_by_repetition(ids, position, size):
    """Returns the (row, id) that `no_repeat_ngram_size` forbids, without padding."""
    rows = allowed_ids(ids, position, no_repeat_ngram_size=size)
    return {(row, i) for row, allowed in enumerate(rows) for i in set(range(1, VOCAB)) - allowed}


@pytest.mark.parametrize(
    "size, expected",
    [
        (1, {(0, 3), (0, 4), (1, 5), (1, 6)}),
        (2, {(0, 3)}),  # in row 0, 3 followed 4; in row 1, nothing followed 6
        (3, {(0, 3)}),  # 3 followed (3, 4)
        (4, set()),
        (5, set()),
        (6, set()),
    ],
)
def test_no_repeat_ngram_size_forbids_completions(size, expected):
    assert forbidden_by_repetition(IDS, POSITION, size) == expected


def test_no_repeat_ngram_size_handles_overlaps():
    ids = np.array([[5, 5, 5, 0, 0], [5, 6, 5, 0, 0]], "int32")
    assert forbidden_by_repetition(ids, 3, 2) == {(0, 5), (1, 6)}


@pytest.mark.parametrize("position, forced", [(0, [3, 0]), (1, [4, 0]), (2, [0, 0]), (9, [0, 0])])
def test_prefix_allows_only_its_ids(position, forced):
    prefix = np.array([[3, 4], [0, 0]], "int32")
    expected = [{token} if token else set(range(1, VOCAB)) for token in forced]
    assert allowed_ids(IDS, position, prefix=prefix) == expected


def test_prefix_overrides_other_constraints(rng):
    logits = rng.normal(size=(2, VOCAB)).astype("float32")
    rules = Constraints(5, np.array([[0] * 4 + [1], [0] * 4 + [5]], "int32"), 1, 2.0)
    found = next_ids(logits, IDS, POSITION, rules)
    assert [np.flatnonzero(row).tolist() for row in found.allowed] == [[1], [5]]
    assert not ops.convert_to_numpy(found.ends_early).any()
    np.testing.assert_allclose(found.log_probs, ops.log_softmax(logits), rtol=1e-6)


def test_constraints_any_is_false_only_for_defaults():
    assert not Constraints().any
    assert not checked_constraints(0, 0, 1).any
    for rules in ENABLED:
        assert Constraints(**rules).any
    assert Constraints(min_length=ops.convert_to_tensor(0)).any


def settings_of(search, **settings):
    """Returns the settings of a search, with a seed for sampling."""
    return settings | ({"seed": 1} if search is sample_search else {})


@pytest.mark.parametrize("masked", [-np.inf, -1e9, -1e7])
@pytest.mark.parametrize("search", [greedy_search, beam_search, sample_search])
def test_forced_ids_may_be_excluded_by_the_model(search, masked):
    """The ranking of what follows does not depend on the logit of the forced id."""
    settings = settings_of(search, prefix=np.array([[2]]))
    found = search(constant_step([0, 0, masked, 5.0]), STATE, 1, 4, **settings)
    expected = search(constant_step([0, 0, -99, 5.0]), STATE, 1, 4, **settings)
    np.testing.assert_array_equal(found.ids, expected.ids)
    assert found.ids[0, 0, 0] == 2 and np.isfinite(ops.convert_to_numpy(found.scores)).all()
    # An end may follow at once.
    ends = search(constant_step([9.0, 5.0, masked, masked]), STATE, 1, 4, **settings)
    np.testing.assert_array_equal(ends.ids, [[[2, 1, 0, 0]]])


@pytest.mark.parametrize("masked", [-np.inf, -1e9])
@pytest.mark.parametrize("search", [greedy_search, beam_search, sample_search])
def test_allowed_ids_may_be_excluded_by_the_model(search, masked):
    """The model allows padding and an early end only, which the search forbids."""
    step, settings = constant_step([0.0, 5.0, masked, masked]), settings_of(search)
    ids = ops.convert_to_numpy(search(step, STATE, 1, 3, min_length=2, **settings).ids)[0, 0]
    assert set(ids[:2]) <= {2, 3} and ids[2] == 1
    all_excluded = constant_step(np.full(600, masked))
    ids = ops.convert_to_numpy(search(all_excluded, STATE, 1, 3, **settings).ids)[0, 0]
    assert ids[0] != 0


@pytest.mark.parametrize("search", [greedy_search, beam_search, sample_search])
def test_a_penalty_changes_what_a_confident_model_repeats(search):
    """Its log-probabilities are near 0, so that a factor of them has no effect."""
    settings = settings_of(search, min_length=2, repetition_penalty=5.0)
    settings |= {"top_k": 1} if search is sample_search else {}
    ids = search(constant_step([-9.0, -9.0, 20.0, 8.0]), STATE, 1, 2, **settings).ids
    np.testing.assert_array_equal(ids, [[[2, 3]]])


def test_disabled_constraints_are_not_computed(language, monkeypatch):
    def fail(*arguments):
        raise AssertionError("Constraints were computed.")

    module = importlib.import_module("t2t_relpos.decoding.beam_search")
    monkeypatch.setattr(module, "next_ids", fail)
    search = functools.partial(beam_search, language.step, language.start(), 3, 4)
    disabled = {"min_length": 0, "prefix": None, "no_repeat_ngram_size": 0}
    search(**disabled, repetition_penalty=1.0)
    with pytest.raises(AssertionError, match="Constraints were computed"):
        search(min_length=1)


def test_beam_search_without_allowed_ids_ends_the_sentence(language):
    """With three distinct words and `min_length` 4, no id is allowed at the fourth position."""
    rules = {"min_length": 4, "no_repeat_ngram_size": 1}
    result = beam_search(language.step, language.start(), 3, 4, beam_size=64, **rules)
    for ids, length in zip(
        ops.convert_to_numpy(result.ids)[:, 0], ops.convert_to_numpy(result.lengths)[:, 0]
    ):
        assert ids.tolist().index(1) + 1 == length
        assert not ids[length:].any()
