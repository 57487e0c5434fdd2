"""Tests of constraints with ids that the model excludes, and that disabled ones are not computed.

test_constrained_beam_search.py compares each constraint with exhaustive search.
"""

import functools
import importlib

import numpy as np
import pytest
from keras import ops
from languages import STATE, constant_step

from t2t_relpos.decoding import beam_search, greedy_search, sample_search
from t2t_relpos.decoding.constraints import Constraints, next_ids


def test_ngrams_may_overlap():
    """Another 5 after 5, 5 would repeat the pair 5, 5."""
    ids, logits = np.array([[5, 5, 0], [5, 6, 0]], "int32"), np.zeros((2, 7), "float32")
    allowed = next_ids(logits, ids, 2, Constraints(no_repeat_ngram_size=2)).allowed
    assert [np.flatnonzero(row).tolist() for row in allowed] == [[1, 2, 3, 4, 6], [*range(1, 7)]]


def test_repetition_penalty_does_not_change_padding():
    logits, ids = np.array([[1.0, 2.0, 3.0]], "float32"), np.array([[2, 0]], "int32")
    found = next_ids(logits, ids, 1, Constraints(repetition_penalty=2.0)).log_probs
    np.testing.assert_allclose(found, ops.log_softmax([[1.0, 2.0, 1.5]]), atol=1e-6)


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
