import keras
import numpy as np
import pytest
from comparisons import assert_all_close
from keras import ops
from languages import STATE, constant_step

from t2t_relpos.decoding import beam_search, length_penalty
from t2t_relpos.decoding.beam_search import Beams
from t2t_relpos.decoding.constraints import checked_constraints
from t2t_relpos.decoding.sample_search import SinglePath
from t2t_relpos.decoding.search import Request

LIMITS = np.array([4, 3, 4], "int32")


def search(language, **settings):
    result = beam_search(language.step, language.start(), 3, 4, **settings)
    return [ops.convert_to_numpy(x) for x in result]


@pytest.mark.parametrize("size, num_results, min_length", [(2, 1, 0), (4, 3, 2), (5, 5, 0)])
def test_beam_search_is_independent_of_other_sentences(language, size, num_results, min_length):
    settings = {"beam_size": size, "num_results": num_results, "min_length": min_length}
    together = search(language, length_limit=LIMITS, **settings)
    start = language.start()
    for sentence in range(3):
        one = slice(sentence, sentence + 1)
        state = keras.tree.map_structure(lambda x: x[one], start)
        single = beam_search(language.step, state, 1, 4, length_limit=LIMITS[one], **settings)
        for ours, theirs in zip(single, together, strict=True):
            np.testing.assert_allclose(ours[0], theirs[sentence], rtol=1e-6)


def test_beam_search_never_selects_padding():
    result = beam_search(constant_step([9.0, 1.0, 0.0]), STATE, 1, 3, beam_size=2)
    np.testing.assert_array_equal(result.ids, [[[1, 0, 0]]])


@pytest.mark.parametrize("t2t_exact", [False, True])
def test_unfinished_outputs_follow_finished_ones(t2t_exact):
    row = np.array([-1e9, 5.0, 1.0, 0.0])
    settings = {"beam_size": 3, "num_results": 3, "t2t_exact": t2t_exact}
    result = beam_search(constant_step(row), STATE, 1, 1, **settings)
    scores = (row - np.log(np.exp(row).sum()))[1:]
    missing = [-1e7, -1e7] if t2t_exact else scores[1:]
    np.testing.assert_array_equal(result.ids, [[[1], [0], [0]] if t2t_exact else [[1], [2], [3]]])
    np.testing.assert_array_equal(result.lengths, [[1, 0, 0] if t2t_exact else [1, 1, 1]])
    np.testing.assert_allclose(result.scores, [[scores[0], *missing]], rtol=1e-5)


def test_missing_results_have_length_zero():
    """Without outputs of the model, there is nothing to fill up with."""
    result = beam_search(
        constant_step([-1e9, 5.0, 1.0]), STATE, 1, 2, beam_size=4, num_results=4, min_length=1
    )
    np.testing.assert_array_equal(result.ids, [[[2, 1], [2, 2], [0, 0], [0, 0]]])
    np.testing.assert_array_equal(result.lengths, [[2, 2, 0, 0]])
    np.testing.assert_array_equal(result.scores[0, 2:], [-1e7, -1e7])


@pytest.mark.parametrize("alpha", [0.6, 3.0])
@pytest.mark.parametrize("masked", [-np.inf, -1e9, -1e7])
def test_excluded_ids_are_no_outputs(masked, alpha):
    """The model allows ids 1 and 3. Wide beams have places for other ids too."""
    settings = {"beam_size": 4, "num_results": 4, "alpha": alpha}
    result = beam_search(constant_step([0.0, 0.0, masked, 5.0]), STATE, 1, 2, **settings)
    exists = ops.convert_to_numpy(result.lengths)[0] > 0
    found = sorted(ops.convert_to_numpy(result.ids)[0, exists].tolist())
    assert found == [[1, 0], [3, 1], [3, 3]]
    np.testing.assert_array_equal(result.scores[0, 3:], [-1e7])
    # An end that the model excludes does not finish an output.
    result = beam_search(constant_step([0.0, masked, 1.0, 2.0]), STATE, 1, 2, beam_size=2)
    np.testing.assert_array_equal(result.ids, [[[3, 3]]])


@pytest.mark.parametrize("beam_size", [600, 999])
def test_beam_size_may_be_near_the_size_of_the_vocabulary(beam_size, tf):
    """In the first step, one beam has fewer than 2k candidates."""
    row = np.linspace(0.0, 1.0, 1000)
    row[1] = 2.0
    settings = {"num_results": 3}
    results = [
        beam_search(constant_step(row), STATE, 1, 1, beam_size=size, **settings)
        for size in (beam_size, ops.convert_to_tensor(beam_size), 4)
    ]
    for result in results[:2]:
        assert_all_close(result, results[2], rtol=1e-6)


def test_beam_search_of_an_empty_batch_is_empty(language):
    state = keras.tree.map_structure(lambda x: x[:0], language.start())
    result = beam_search(language.step, state, 0, 4, beam_size=2)
    assert result.ids.shape == (0, 1, 4)
    assert result.scores.shape == (0, 1)


def test_early_stopping_returns_the_first_finished_outputs():
    """A one-id output finishes first; the length penalty makes the longest output score best."""
    first, later = (np.log([1e-9, *row]).astype("float32") for row in ([0.4, 0.6], [0.1, 0.9]))

    def step(ids, state):
        return ops.where(state["i"][:, None] < 1, first, later), {"i": state["i"] + 1}

    state, settings = {"i": np.zeros(1, "int32")}, {"beam_size": 1, "alpha": 3.0}
    results = [beam_search(step, state, 1, 9, early_stopping=x, **settings) for x in (True, False)]
    assert [int(result.lengths[0, 0]) for result in results] == [1, 9]
    scores = [float(result.scores[0, 0]) for result in results]
    best = (np.log(0.6) + 7 * np.log(0.9) + np.log(0.1)) / (14 / 6) ** 3
    np.testing.assert_allclose(scores, [np.log(0.4), best], rtol=1e-5)


def test_length_penalty_values():
    np.testing.assert_allclose(length_penalty(7, 0.6), 2**0.6, rtol=1e-6)
    np.testing.assert_allclose(length_penalty(7, 0.0), 1.0)


@pytest.mark.parametrize("cls", [Beams, SinglePath])
def test_result_reads_all_result_entries_and_no_others(cls):
    """The loop that removes finished sentences keeps only these entries."""
    read = set()

    class Recorder(dict):
        def __getitem__(self, name):
            read.add(name)
            return super().__getitem__(name)

    step, ends = constant_step([0.0]), checked_constraints()
    request = Request(step, STATE, 2, 2, None, ends)
    if cls is Beams:
        settings = dict.fromkeys(("alpha", "early_stopping", "t2t_exact"), 0)
        selection = Beams(request, beam_size=2, num_results=2, **settings)
    else:
        selection = SinglePath(None, request, 2)
    selection.result(Recorder(selection.start(request.limit)))
    assert read == set(selection.RESULT_ENTRIES)
