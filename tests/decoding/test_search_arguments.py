"""Tests of arguments that searches and samplers check, and of the configs of samplers."""

import itertools
import json

import keras
import numpy as np
import pytest
from languages import STATE, constant_step

from t2t_relpos.decoding import (
    BeamSampler,
    GreedySampler,
    TopKSampler,
    TopPSampler,
    beam_search,
    greedy_search,
    sample_search,
)

SEARCHES = [beam_search, greedy_search, sample_search]
# Name of an argument, wrong values, and the first words of the error. Of all searches, of beam
# search, and of sampling.
SHARED = [
    ("max_length", (0, -1, 2.5, None, True), "Expected `max_length` to be a positive integer"),
    ("batch_size", (-1, 2.5), "Expected `batch_size` to be an int"),
    ("eos_id", (1.5, None), "Expected `eos_id` to be an int or a scalar tensor"),
    ("pad_id", (0.0,), "Expected `pad_id` to be an int or a scalar tensor"),
    ("eos_id", (0,), "Expected different `eos_id` and `pad_id`"),
    ("prefix", (np.ones((2, 1), int),), "Expected `prefix` with a row for each of the 3 sentences"),
    ("prefix", ([[2], [3], [5]], [[2], [-3], [4]]), r"Expected ids of `prefix` in \[0, 5\)"),
    ("prefix", ([2, 3],), r"Expected `prefix` of shape \[batch, length\]"),
    ("min_length", (-1, 1.5, True), "Expected `min_length` to be an int of at least 0"),
    ("no_repeat_ngram_size", (-2, None), "Expected `no_repeat_ngram_size` to be an int"),
    ("repetition_penalty", (0.0, float("inf")), "Expected `repetition_penalty` above 0"),
    ("stop_token_ids", (5,), "Expected `stop_token_ids` to be a tuple of ids"),
    ("stop_token_ids", ((1, 2.0),), "Expected `stop_token_ids` to be ints of at least 0"),
    ("stop_token_ids", ([2, 0],), "Expected `stop_token_ids` without `pad_id`, 0"),
]
BEAM = [
    ("beam_size", (0,), "Expected `beam_size` to be a positive integer"),
    ("num_results", (5,), "Expected `num_results` to be at most `beam_size`, 4. Received: 5"),
    ("alpha", (-0.5, float("inf")), "Expected `alpha` of at least 0 .*and finite"),
]
EXACT = [
    ("length_limit", ([2, 2, 2],), "Expected no `length_limit` with `t2t_exact`"),
    ("early_stopping", (True,), "Expected `early_stopping` to be False with `t2t_exact`"),
    ("stop_token_ids", ((1, 2),), "Expected one end id with `t2t_exact`"),
    ("min_length", (1,), "Expected none of `min_length`, `prefix`"),
    ("prefix", ([[2]] * 3,), "Expected none of `min_length`, `prefix`"),
    ("no_repeat_ngram_size", (2,), "Expected none of `min_length`, `prefix`"),
    ("repetition_penalty", (1.1,), "Expected none of `min_length`, `prefix`"),
]
SHAPES = (2, 1, 4), (3, 4), (4, 3, 2)
SAMPLE = [
    ("temperature", (0.0,), "Expected `temperature` above 0"),
    ("top_k", (0, 2.5), "Expected `top_k` to be a positive integer"),
    ("top_p", (0.0, 1.1), "Expected `top_p` above 0 and at most 1"),
    ("num_results", (0, None), "Expected `num_results` to be a positive integer"),
    ("uniform", tuple(map(np.zeros, SHAPES)), r"Expected `uniform` of shape .* = \[3, 1, 4\]"),
]
CONSTRAINTS = [row for row in SHARED if row[0].startswith(("min", "no_repeat", "repetition"))]
SAMPLERS = {
    GreedySampler: [],
    BeamSampler: [
        ("num_beams", (0,), "Expected `num_beams` to be a positive integer"),
        ("num_results", (5,), "Expected `num_results` to be at most `num_beams`, 4. Received: 5"),
        ("alpha", (-0.5,), "Expected `alpha` of at least 0"),
    ],
    TopKSampler: [
        ("k", (2.5, None), "Expected `k` to be a positive integer"),
        ("temperature", (0.0,), "Expected `temperature` above 0"),
        ("num_results", (0,), "Expected `num_results` to be a positive integer"),
    ],
    TopPSampler: [
        ("p", (1.5, None), "Expected `p` above 0 and at most 1"),
        ("k", (0,), "Expected `k` to be a positive integer"),
    ],
}


def errors(rows, **others):
    """Yields (settings, message) of each wrong value."""
    for name, values, message in rows:
        yield from (({name: value, **others}, message) for value in values)


@pytest.mark.parametrize(
    "search, settings, message",
    [
        *((search, *error) for search in SEARCHES for error in errors(SHARED)),
        *((beam_search, *error) for error in (*errors(BEAM), *errors(EXACT, t2t_exact=True))),
        *((sample_search, *error) for error in errors(SAMPLE)),
        (sample_search, {"seed": 1, "uniform": np.zeros((3, 1, 4))}, "Expected `seed` or `unif"),
    ],
)
def test_searches_reject_invalid_arguments(language, search, settings, message):
    sizes = {"batch_size": 3, "max_length": 4}
    with pytest.raises(ValueError, match=message):
        search(language.step, language.start(), **sizes | settings)


@pytest.mark.parametrize(
    "sampler, settings, message",
    [
        (sampler, *error)
        for sampler, rows in SAMPLERS.items()
        for error in errors([*CONSTRAINTS, *rows])
    ],
)
def test_samplers_reject_invalid_arguments(sampler, settings, message):
    with pytest.raises(ValueError, match=message):
        sampler(**settings)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers_reject_unknown_arguments(sampler):
    with pytest.raises(TypeError, match="unexpected keyword argument 'beam_size'"):
        sampler(beam_size=3)


@pytest.mark.parametrize(
    "sampler",
    [
        GreedySampler(min_length=np.int64(3), repetition_penalty=np.float32(0.5)),
        BeamSampler(np.int32(3), np.float32(0.5), np.int64(2), np.bool_(True)),
        TopKSampler(np.int64(3), np.float32(0.5), seed=np.int64(7), no_repeat_ngram_size=2),
        TopPSampler(np.float16(0.5), np.uint8(4), np.float64(0.5), num_results=np.int32(2)),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_samplers_restore_their_config_from_json(sampler):
    data = keras.saving.serialize_keras_object(sampler)
    for restored in (
        type(sampler).from_config(json.loads(json.dumps(sampler.get_config()))),
        keras.saving.deserialize_keras_object(json.loads(json.dumps(data))),
    ):
        assert type(restored) is type(sampler)
        assert restored.get_config() == sampler.get_config()
        assert restored.settings() == sampler.settings()
    sampler.min_length = np.int64(2)
    assert type(sampler.get_config()["min_length"]) is int


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
    settings = {"beam_size": 24, "num_results": 24, "alpha": 0.0, "stop_token_ids": (1, 4)}
    found = beam_search(constant_step(row), STATE, 1, 3, **settings)
    words = [output for n in range(4) for output in itertools.product((2, 3), repeat=n)]
    finished = [(*output, end) for output in words if len(output) < 3 for end in (1, 4)]
    expected = [*sorted(finished, key=lambda output: -row[list(output)].sum()), *words[-8:]]
    outputs = [tuple(x for x in output if x) for output in np.asarray(found.ids)[0].tolist()]
    assert set(outputs[:14]) == set(finished) and set(outputs[14:22]) == set(words[-8:])
    scores = [row[list(output)].sum() for output in expected[:14]]
    np.testing.assert_allclose(found.scores[0, :14], scores, rtol=1e-5)
    np.testing.assert_array_equal(found.lengths[0, 22:], [0, 0])
