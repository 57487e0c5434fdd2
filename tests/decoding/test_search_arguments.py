"""Tests of arguments that all searches and samplers check before they run."""

import numpy as np
import pytest
from keras import ops

from t2t_relpos.decoding import (
    BeamSampler,
    GreedySampler,
    TopKSampler,
    beam_search,
    greedy_search,
    sample_search,
)

SEARCHES = [beam_search, greedy_search, sample_search]


@pytest.fixture
def language(make_language):
    return make_language(1)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize(
    "settings, message",
    [
        ({"eos_id": 2, "pad_id": 2}, "Expected different `eos_id` and `pad_id`.* Received: 2 for"),
        (
            {"prefix": np.ones((2, 1), int)},
            r"`prefix` with a row for each of the 3 sentences. Received: shape \(2, 1\)",
        ),
        ({"prefix": [[2], [3], [5]]}, r"`prefix` in \[0, 5\).*Received: ids from 2 to 5"),
        ({"prefix": [[2], [-3], [4]]}, r"`prefix` in \[0, 5\).*Received: ids from -3 to 4"),
        ({"min_length": True}, "`min_length` to be an int of at least 0 .* Received: True"),
    ],
    ids=str,
)
def test_searches_reject_invalid_ids(language, search, settings, message):
    with pytest.raises(ValueError, match=message):
        search(language.step, language.start(), 3, 4, **settings)


@pytest.mark.parametrize("search", SEARCHES)
def test_searches_accept_numpy_integers(language, search):
    settings = {"seed": 1} if search is sample_search else {}
    first, second = (
        search(language.step, language.start(), 3, 4, **settings, **numbers)
        for numbers in (
            {"min_length": 2, "no_repeat_ngram_size": 1},
            {"min_length": np.int64(2), "no_repeat_ngram_size": np.int64(1)},
        )
    )
    np.testing.assert_array_equal(first.ids, second.ids)


@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 4), (4, 3, 2)])
def test_sample_search_rejects_random_numbers_of_another_shape(language, shape):
    message = r"`uniform` of shape \[batch, num_results, max_length\] = \[3, 2, 4\]. Received: "
    with pytest.raises(ValueError, match=message):
        sample_search(
            language.step, language.start(), 3, 4, num_results=2, uniform=np.zeros(shape, "float32")
        )


def test_beam_search_rejects_a_negative_alpha(language):
    with pytest.raises(ValueError, match="Expected `alpha` of at least 0 .*Received: -0.5"):
        beam_search(language.step, language.start(), 3, 4, alpha=-0.5)
    with pytest.raises(ValueError, match="Expected `alpha` of at least 0 .*Received: -0.5"):
        BeamSampler(alpha=-0.5)


@pytest.mark.parametrize("sampler", [BeamSampler, GreedySampler, TopKSampler])
@pytest.mark.parametrize(
    "settings, message",
    [
        ({"min_length": -1}, "Expected `min_length` to be an int of at least 0"),
        ({"no_repeat_ngram_size": 1.5}, "Expected `no_repeat_ngram_size` to be an int"),
        ({"repetition_penalty": 0}, "Expected `repetition_penalty` above 0"),
    ],
)
def test_samplers_reject_invalid_constraints(sampler, settings, message):
    with pytest.raises(ValueError, match=message):
        sampler(**settings)


def test_missing_results_have_length_zero():
    def ends_at_once(ids, state):
        row = np.array([[-1e9, 5.0, 1.0, 0.0]], "float32")
        return ops.repeat(row, ops.shape(ids)[0], axis=0), state

    state = {"x": np.zeros((1, 1))}
    result = beam_search(ends_at_once, state, 1, 1, beam_size=3, num_results=3)
    np.testing.assert_array_equal(result.ids, [[[1], [0], [0]]])
    np.testing.assert_array_equal(result.lengths, [[1, 0, 0]])
    np.testing.assert_allclose(result.scores[0, 1:], [-1e7, -1e7])
