"""Compares constrained beam search with exhaustive search.

The beam is wide enough that no hypothesis is pruned.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from languages import Language, Rules

from t2t_relpos.decoding import beam_search

LIMITS = [4, 3, 4]
# Prefixes of different lengths: longer than the length limit, empty, and ending the sentence.
PREFIX = [[4, 2, 3, 2], [2, 3, 3, 4], [0, 0, 0, 0]]
ENDING_PREFIX = [[3, 1], [1, 0], [2, 0]]


def assert_equals_exhaustive_search(
    language, limits=LIMITS, alpha=0.6, num_results=5, prefix=None, early=False, **rules
):
    settings = {"beam_size": 27, "num_results": num_results, "early_stopping": early}
    arrays = {"length_limit": limits} | ({} if prefix is None else {"prefix": prefix})
    arrays = {name: np.array(x, "int32") for name, x in arrays.items()}
    step, state = language.step, language.start()
    found = beam_search(step, state, 3, 4, alpha=alpha, **settings, **arrays, **rules)
    ids, scores, lengths = (ops.convert_to_numpy(x) for x in found)
    for sentence, limit in enumerate(limits):
        forced = [] if prefix is None else [token for token in prefix[sentence] if token]
        choices = Rules(prefix=tuple(forced), **rules).choices
        outputs = [
            (log_prob / ((5 + len(output)) / 6) ** alpha, output)
            for log_prob, output in language.outputs(sentence, limit, choices)
        ]
        by_end = [[x for x in outputs if (x[1][-1] == 1) == is_end] for is_end in (True, False)]
        # Unfinished outputs follow finished ones.
        expected = [x for part in by_end for x in sorted(part, reverse=True)][:num_results]
        for i, (score, output) in enumerate(expected):
            assert ids[sentence, i].tolist() == output + [0] * (4 - len(output))
            assert lengths[sentence, i] == len(output)
            np.testing.assert_allclose(scores[sentence, i], score, atol=2e-5)
        # Missing results have no ids.
        assert (scores[sentence, len(expected) :] == -1e7).all()
        assert not ids[sentence, len(expected) :].any()
        assert not lengths[sentence, len(expected) :].any()


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"alpha": 0.0},
        {"alpha": 1.0, "min_length": 2},
        {"min_length": 3},
        {"no_repeat_ngram_size": 1},
        {"no_repeat_ngram_size": 2},
        {"no_repeat_ngram_size": 3},
        {"no_repeat_ngram_size": 6},
        {"repetition_penalty": 1.5},
        {"repetition_penalty": 0.5},
        {"prefix": PREFIX},
        {"prefix": ENDING_PREFIX},
        {"prefix": PREFIX, "no_repeat_ngram_size": 1},
        {"prefix": PREFIX, "min_length": 3, "repetition_penalty": 2.0, "alpha": 1.0},
        # No output ends within the limit.
        {"min_length": 4, "num_results": 7},
        # There are only 1 + 3 + 3·2 + 3·2·1 outputs of up to four ids.
        {"limits": [4, 4, 4], "no_repeat_ngram_size": 1, "num_results": 20},
    ],
    ids=str,
)
def test_constrained_beam_search_equals_exhaustive_search(language, rules):
    assert_equals_exhaustive_search(language, **rules)


@settings(derandomize=True)
@given(data=st.data())
def test_combined_constraints_equal_exhaustive_search(data):
    language = Language(data.draw(st.integers(0, 99), "seed"))
    ids = st.lists(st.integers(2, 4), max_size=4)
    prefix = [row + [0] * (5 - len(row)) for row in data.draw(st.tuples(ids, ids, ids), "prefix")]
    assert_equals_exhaustive_search(
        language,
        limits=data.draw(st.tuples(*3 * [st.integers(1, 4)]), "limits"),
        alpha=data.draw(st.sampled_from([0.0, 0.6, 2.0]), "alpha"),
        num_results=data.draw(st.sampled_from([1, 3]), "n"),
        prefix=data.draw(st.sampled_from([None, prefix]), "has prefix"),
        early=data.draw(st.booleans(), "early stopping"),
        min_length=data.draw(st.sampled_from([0, 1, 3]), "min length"),
        no_repeat_ngram_size=data.draw(st.sampled_from([0, 2, 3]), "ngram"),
        repetition_penalty=data.draw(st.sampled_from([1.0, 0.7, 1.5]), "penalty"),
    )
