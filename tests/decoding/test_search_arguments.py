"""Tests of arguments that searches and samplers check before they run."""

import itertools

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
# Errors of all searches, of beam search, and of sampling.
LENGTH = "Expected `max_length` to be a positive integer. Received: max_length={}. Pass an int"
SHARED = [
    *(({"max_length": n}, LENGTH.format(n)) for n in (0, -1, 2.5, None, True)),
    *(
        ({"batch_size": n}, f"Expected `batch_size` to be an int .* Received: batch_size={n}")
        for n in (-1, 2.5)
    ),
    *(
        ({name: n}, f"Expected `{name}` to be an int or a scalar tensor. Received: {name}={n}")
        for name, n in (("eos_id", 1.5), ("eos_id", None), ("pad_id", 0.0))
    ),
    ({"eos_id": 2, "pad_id": 2}, "Expected different `eos_id` and `pad_id`.* Received: 2 for"),
    (
        {"prefix": np.ones((2, 1), int)},
        r"`prefix` with a row for each of the 3 sentences. Received: shape \(2, 1\)",
    ),
    ({"prefix": [[2], [3], [5]]}, r"`prefix` in \[0, 5\).*Received: ids from 2 to 5"),
    ({"prefix": [[2], [-3], [4]]}, r"`prefix` in \[0, 5\).*Received: ids from -3 to 4"),
    (
        {"prefix": [2, 3]},
        r"Expected `prefix` of shape \[batch, length\], padded at the end\. Received: shape \(2,\)",
    ),
    (
        {"min_length": -1},
        r"Expected `min_length` to be an int of at least 0 or a scalar tensor\. Received: -1",
    ),
    ({"min_length": 1.5}, r"Expected `min_length` to be an int of at least 0 .*Received: 1\.5"),
    ({"min_length": True}, "`min_length` to be an int of at least 0 .* Received: True"),
    (
        {"no_repeat_ngram_size": -2},
        r"Expected `no_repeat_ngram_size` .*\(0: any may repeat\)\. Received: -2",
    ),
    (
        {"no_repeat_ngram_size": None},
        "Expected `no_repeat_ngram_size` to be an int .*Received: None",
    ),
    (
        {"repetition_penalty": 0.0},
        r"Expected `repetition_penalty` above 0 \(1: none.*Received: 0\.0",
    ),
    ({"repetition_penalty": float("inf")}, "from 1e-09 to .*Received: inf"),
    (
        {"stop_token_ids": 5},
        r"`stop_token_ids` to be a tuple of ids, such as \(1, 5\). Received: 5",
    ),
    ({"stop_token_ids": (1, 2.0)}, r"to be ints of at least 0. Received: \(1, 2.0\)"),
    ({"stop_token_ids": [2, 0]}, r"without `pad_id`, 0: .*Received: \[2, 0\]"),
]
NO_CONSTRAINTS = (
    r"Expected none of `min_length`, `prefix`, `no_repeat_ngram_size` and `repetition_penalty` with"
)
BEAM = [
    ({"beam_size": 0}, "Expected `beam_size` to be a positive integer. Received: beam_size=0"),
    (
        {"beam_size": 2, "num_results": 3},
        "Expected `num_results` to be at most `beam_size`, 2. Received: 3",
    ),
    ({"alpha": -0.5}, "Expected `alpha` of at least 0 .*Received: -0.5"),
    (
        {"t2t_exact": True, "length_limit": np.array([2, 2, 2])},
        r"Expected no `length_limit` with `t2t_exact`.*Received: both",
    ),
    (
        {"t2t_exact": True, "early_stopping": True},
        r"Expected `early_stopping` to be False with `t2t_exact`.*Received: both",
    ),
    ({"alpha": float("inf")}, "Expected `alpha` of at least 0 .*finite. Received: inf"),
    ({"t2t_exact": True, "stop_token_ids": (1, 2)}, "one end id with `t2t_exact`.*=\\(1, 2\\)"),
    ({"t2t_exact": True, "min_length": 1}, NO_CONSTRAINTS),
    ({"t2t_exact": True, "prefix": np.array([[2]] * 3)}, NO_CONSTRAINTS),
    ({"t2t_exact": True, "no_repeat_ngram_size": 2}, NO_CONSTRAINTS),
    ({"t2t_exact": True, "repetition_penalty": 1.1}, NO_CONSTRAINTS),
]
SAMPLE = [
    (
        {"temperature": 0.0},
        r"Expected `temperature` above 0 .*use greedy_search or GreedySampler .*Received: 0.0",
    ),
    ({"top_k": 0}, "Expected `top_k` to be a positive integer. Received: top_k=0"),
    ({"top_k": 2.5}, r"Expected `top_k` to be a positive integer\. Received: top_k=2\.5"),
    ({"top_p": 0.0}, r"Expected `top_p` above 0 and at most 1\. Received: 0\.0"),
    ({"top_p": 1.1}, r"Expected `top_p` above 0 and at most 1\. Received: 1\.1"),
    *(
        (
            {"num_results": number},
            f"Expected `num_results` to be a positive integer. Received: num_results={number}",
        )
        for number in (0, None)
    ),
    (
        {"seed": 1, "uniform": np.zeros((3, 1, 4))},
        "Expected `seed` or `uniform`.* Received: both",
    ),
    *(
        (
            {"num_results": 2, "uniform": np.zeros(shape, "float32")},
            r"`uniform` of shape \[batch, num_results, max_length\] = \[3, 2, 4\]. Received: ",
        )
        for shape in ((2, 3, 4), (3, 4), (4, 3, 2))
    ),
]


@pytest.mark.parametrize(
    "search, settings, message",
    [
        *((search, *error) for search in SEARCHES for error in SHARED),
        *((beam_search, *error) for error in BEAM),
        *((sample_search, *error) for error in SAMPLE),
    ],
)
def test_searches_reject_invalid_arguments(language, search, settings, message):
    sizes = {"batch_size": 3, "max_length": 4}
    with pytest.raises(ValueError, match=message):
        search(language.step, language.start(), **sizes | settings)


@pytest.mark.parametrize(
    "sampler, settings, message",
    [
        *(
            (sampler, *error)
            for sampler in (BeamSampler, GreedySampler, TopKSampler)
            for error in (
                ({"min_length": -1}, "Expected `min_length` to be an int of at least 0"),
                ({"no_repeat_ngram_size": 1.5}, "Expected `no_repeat_ngram_size` to be an int"),
                ({"repetition_penalty": 0}, "Expected `repetition_penalty` above 0"),
            )
        ),
        (BeamSampler, {"alpha": -0.5}, "Expected `alpha` of at least 0 .*Received: -0.5"),
    ],
)
def test_samplers_reject_invalid_arguments(sampler, settings, message):
    with pytest.raises(ValueError, match=message):
        sampler(**settings)


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


@pytest.mark.parametrize("search", SEARCHES)
def test_outputs_end_with_each_stop_token_id(language, search):
    """Ids 3 and 4 end an output, and id 1 is a word."""
    settings = {"stop_token_ids": [4, 3]} | ({"seed": 1} if search is sample_search else {})
    rules = {"min_length": 2}
    ids, _, lengths = (
        np.asarray(x)[:, 0]
        for x in search(language.step, language.start(), 3, 4, **settings, **rules)
    )
    for row, length in zip(ids, lengths, strict=True):
        ends = np.isin(row, (3, 4))
        assert not ends[:1].any() and not row[length:].any()
        assert length == (ends.argmax() + 1 if ends.any() else 4)
    settings["stop_token_ids"] = ()
    found = search(language.step, language.start(), 3, 4, **settings)
    np.testing.assert_array_equal(found.lengths, 3 * [[4]])


def test_beam_search_with_several_ends_finds_all_outputs():
    row = np.log([1e-9, 0.1, 0.3, 0.4, 0.2]).astype("float32")
    step = lambda ids, state: (ops.repeat(row[None], ops.shape(ids)[0], axis=0), state)
    state, settings = {"x": np.zeros((1, 1))}, {"beam_size": 24, "num_results": 24, "alpha": 0.0}
    found = beam_search(step, state, 1, 3, stop_token_ids=(1, 4), **settings)
    words = [output for n in range(4) for output in itertools.product((2, 3), repeat=n)]
    finished = [(*output, end) for output in words if len(output) < 3 for end in (1, 4)]
    expected = [*sorted(finished, key=lambda output: -row[list(output)].sum()), *words[-8:]]
    outputs = [tuple(x for x in output if x) for output in np.asarray(found.ids)[0].tolist()]
    assert set(outputs[:14]) == set(finished) and set(outputs[14:22]) == set(words[-8:])
    scores = [row[list(output)].sum() for output in expected[:14]]
    np.testing.assert_allclose(found.scores[0, :14], scores, rtol=1e-5)
    np.testing.assert_array_equal(found.lengths[0, 22:], [0, 0])
