import itertools

import keras
import numpy as np
import pytest
from comparisons import assert_all_close
from keras import ops
from languages import STATE, Rules, constant_step

from t2t_relpos.decoding import greedy_search, sample_search

LIMITS = np.array([4, 3, 4], "int32")
DRAWS = 20_000


def sample(language, max_length=4, **settings):
    found = sample_search(language.step, language.start(), 3, max_length, **settings)
    return [ops.convert_to_numpy(x) for x in found]


def filtered_probabilities(log_probs, temperature, top_k, top_p):
    """Returns the probabilities after temperature, top-k and top-p, computed with NumPy."""
    weights = np.exp(log_probs / temperature - (log_probs / temperature).max())
    order = np.argsort(-weights, kind="stable")
    kept = order[:top_k]
    shares = weights[kept] / weights[kept].sum()
    kept = kept[: 1 + (np.cumsum(shares) < top_p).sum()]
    probabilities = np.zeros_like(weights)
    probabilities[kept] = weights[kept] / weights[kept].sum()
    return probabilities


def output_probabilities(language, sentence, limit, rules, filters):
    """Returns `{output: probability}` of all outputs."""

    def choices(logits, ids):
        allowed = rules.choices(logits, ids)
        shares = filtered_probabilities(np.array(list(allowed.values())), **filters)
        return {t: np.log(share) for t, share in zip(allowed, shares, strict=True) if share > 0}

    outputs = language.outputs(sentence, limit, choices)
    return {tuple(ids): np.exp(log_prob) for log_prob, ids in outputs}


@pytest.mark.parametrize(
    "rules, filters",
    [
        ({}, {}),
        ({}, {"temperature": 0.5}),
        ({}, {"temperature": 2.0, "top_k": 3}),
        ({}, {"top_p": 0.7}),
        ({"min_length": 2, "no_repeat_ngram_size": 1}, {"top_k": 3, "top_p": 0.9}),
        ({"repetition_penalty": 2.0}, {"temperature": 1.5}),
    ],
    ids=str,
)
def test_sample_search_frequencies_match_probabilities(language, rules, filters):
    settings = {"num_results": DRAWS, "seed": 5, "length_limit": LIMITS, **rules, **filters}
    ids, _, lengths = sample(language, **settings)
    filters = {"temperature": 1.0, "top_k": None, "top_p": 1.0} | filters
    for sentence, limit in enumerate(LIMITS):
        expected = output_probabilities(language, sentence, limit, Rules(**rules), filters)
        np.testing.assert_allclose(sum(expected.values()), 1)
        drawn, counts = np.unique(ids[sentence], axis=0, return_counts=True)
        outputs = [tuple(row[row > 0].tolist()) for row in drawn]
        assert set(outputs) <= set(expected)
        frequency = dict(zip(outputs, counts / DRAWS, strict=True))
        for output, probability in expected.items():
            # Five standard deviations of a frequency. Rare outputs are not normally distributed,
            # so allow five more draws.
            bound = 5 * np.sqrt(probability * (1 - probability) / DRAWS) + 5 / DRAWS
            assert abs(frequency.get(output, 0.0) - probability) < bound, output
    assert ((ids > 0).sum(-1) == lengths).all()


def test_sample_search_scores_exclude_the_temperature(language):
    settings = {"min_length": 2, "repetition_penalty": 1.5}
    ids, scores, _ = sample(language, num_results=7, seed=3, temperature=2.0, top_k=3, **settings)
    rules = Rules(**settings)
    for sentence, i in itertools.product(range(3), range(7)):
        output = [token for token in ids[sentence, i].tolist() if token]
        steps = (
            rules.choices(language.next_logits(sentence, output[:t]), output[:t])[token]
            for t, token in enumerate(output)
        )
        np.testing.assert_allclose(scores[sentence, i], sum(steps), atol=1e-5)


@pytest.mark.parametrize(
    "settings", [{"temperature": 1e-3}, {"top_k": 1}, {"top_p": 1e-6}], ids=str
)
def test_sample_search_with_one_candidate_equals_greedy_search(language, settings):
    rules = {"length_limit": LIMITS, "no_repeat_ngram_size": 2}
    greedy = greedy_search(language.step, language.start(), 3, 4, **rules)
    assert_all_close(sample(language, seed=11, **rules, **settings), greedy, rtol=1e-5)


@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 1.0}], ids=str)
@pytest.mark.parametrize("temperature", [1e-39, 3e6, float("inf")])
def test_extreme_temperatures_choose_allowed_ids_only(language, temperature, filters):
    prefix = np.array([[3, 0], [4, 2], [0, 0]], "int32")
    settings = {"prefix": prefix, "min_length": 3, "num_results": 20, **filters}
    ids, scores, lengths = sample(language, seed=1, temperature=temperature, **settings)
    assert (ids[0, :, 0] == 3).all() and (ids[1, :, :2] == [4, 2]).all()
    assert (lengths >= 3).all() and (ids > 0).sum() == lengths.sum() and np.isfinite(scores).all()
    if temperature < 1:
        greedy = greedy_search(language.step, language.start(), 3, 4, prefix=prefix, min_length=3)
        np.testing.assert_array_equal(ids, np.repeat(ops.convert_to_numpy(greedy.ids), 20, axis=1))
    else:
        # The next id is one of all allowed ones or of the two most likely ones.
        assert len(np.unique(ids[2, :, 0])) == (2 if filters == {"top_k": 2} else 3)


def test_high_temperatures_do_not_choose_ids_that_the_model_excludes():
    step = constant_step([0.0, 1.0, -1e9, -np.inf, 2.0])
    settings = {"temperature": float("inf"), "num_results": 50, "seed": 1}
    found = sample_search(step, STATE, 1, 1, **settings)
    assert set(np.unique(found.ids)) == {1, 4}


def test_sample_search_is_reproducible_with_a_seed(language):
    first, again, other = (sample(language, num_results=13, seed=seed)[0] for seed in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("is_global", [False, True])
def test_sample_search_advances_its_generator(language, is_global):
    def two_searches():
        keras.utils.set_random_seed(3)
        seed = None if is_global else keras.random.SeedGenerator(7)
        return [sample(language, num_results=13, seed=seed)[0] for _ in range(2)]

    first, second = two_searches()
    assert (first != second).any()
    np.testing.assert_array_equal(two_searches(), [first, second])


def test_sample_search_with_uniform_is_independent_of_the_batch(language, rng):
    uniform = rng.random((3, 7, 4), "float32")
    together = sample(language, num_results=7, uniform=uniform)
    start = language.start()
    for sentence in range(3):
        state = keras.tree.map_structure(lambda x: x[sentence : sentence + 1], start)
        numbers = uniform[sentence : sentence + 1]
        single = sample_search(language.step, state, 1, 4, num_results=7, uniform=numbers)
        for ours, theirs in zip(single, together, strict=True):
            np.testing.assert_allclose(ours[0], theirs[sentence], rtol=1e-6)
