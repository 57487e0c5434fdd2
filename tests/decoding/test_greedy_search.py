import numpy as np
import pytest
from keras import ops
from languages import Rules

from t2t_relpos.decoding import greedy_search

LIMITS = [4, 2, 3]


def greedy_output(language, sentence, limit, rules):
    """Returns (ids, log-probability) of a greedy search in plain Python."""
    ids, total = [], 0.0
    while len(ids) < limit and ids[-1:] != [1]:
        choices = rules.choices(language.next_logits(sentence, ids), ids)
        best = max(choices, key=choices.get)
        total += choices[best]
        ids.append(best)
    return ids, total


def assert_equals_greedy_output(language, rules, **settings):
    limits = np.array(LIMITS, "int32")
    result = greedy_search(language.step, language.start(), 3, 4, length_limit=limits, **settings)
    found, scores, lengths = (ops.convert_to_numpy(x) for x in result)
    assert found.shape == (3, 1, 4)
    for sentence, limit in enumerate(LIMITS):
        ids, score = greedy_output(language, sentence, limit, rules[sentence])
        assert found[sentence, 0].tolist() == ids + [0] * (4 - len(ids))
        assert lengths[sentence, 0] == len(ids)
        np.testing.assert_allclose(scores[sentence, 0], score, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"min_length": 3, "no_repeat_ngram_size": 1, "repetition_penalty": 0.2},
        {"min_length": 2, "no_repeat_ngram_size": 2, "repetition_penalty": 3.0},
    ],
    ids=str,
)
def test_greedy_search_selects_the_best_id_at_every_step(any_language, settings):
    assert_equals_greedy_output(any_language, 3 * [Rules(**settings)], **settings)


@pytest.mark.parametrize("settings", [{}, {"min_length": 3, "no_repeat_ngram_size": 1}], ids=str)
def test_greedy_search_continues_prefixes_of_different_lengths(language, settings):
    # The first three prefixes are as long as the output, longer than it, and ended by EOS.
    for prefixes in ([(4, 2, 2, 3), (3, 3, 4), (2, 1)], [(), (4,), (3, 2)]):
        rules = [Rules(prefix=prefix, **settings) for prefix in prefixes]
        padded = np.array([[*prefix, *[0] * (5 - len(prefix))] for prefix in prefixes], "int32")
        assert_equals_greedy_output(language, rules, prefix=padded, **settings)


def test_greedy_search_without_allowed_ids_ends_the_sentence(language):
    settings = {"min_length": 4, "no_repeat_ngram_size": 1}
    result = greedy_search(language.step, language.start(), 3, 4, **settings)
    ids = ops.convert_to_numpy(result.ids)[:, 0]
    np.testing.assert_array_equal(np.sort(ids[:, :3], axis=-1), 3 * [[2, 3, 4]])
    np.testing.assert_array_equal(ids[:, 3], 1)
    np.testing.assert_array_equal(result.scores, -1e7)


def test_greedy_search_supports_other_eos_and_pad_ids(language):
    """Renumbers the ids of the language."""
    expected = greedy_search(language.step, language.start(), 3, 4, min_length=1)

    def step(ids, state):
        # In the new numbering 4 ends a sentence, 3 is padding, and 0 and 1 are words.
        logits, state = language.step(ops.take(np.array([3, 4, 2, 0, 1], "int32"), ids), state)
        return ops.take(logits, np.array([3, 4, 2, 0, 1]), axis=1), state

    found = greedy_search(step, language.start(), 3, 4, min_length=1, eos_id=4, pad_id=3)
    renamed = np.array([3, 4, 2, 0, 1])[ops.convert_to_numpy(expected.ids)]
    np.testing.assert_array_equal(found.ids, renamed)
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-6)


def test_greedy_search_with_length_limit_zero_returns_empty_outputs(language):
    result = greedy_search(
        language.step, language.start(), 3, 4, length_limit=np.array([0, 2, 0], "int32")
    )
    assert ops.convert_to_numpy(result.lengths)[:, 0].tolist()[::2] == [0, 0]
    assert ops.convert_to_numpy(result.ids)[::2].max() == 0
    assert ops.convert_to_numpy(result.scores)[::2].max() == 0
