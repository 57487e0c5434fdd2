"""A state of one entry per sentence, which the search never moves, does what rows that it moves
do.
"""

import keras
import numpy as np
import pytest
from keras import ops

from t2t_relpos.decoding import beam_search, sample_search

LIMITS = np.array([4, 2, 3], "int32")


def start(language, most_beams):
    """Of every sentence: the ids that its beams, whichever they were, were given at each step."""
    state = language.start()
    return {
        "context": state["context"],
        "step": state["step"],
        "sentences": {"given": np.zeros((3, 4, most_beams), "int32")},
        "ancestors": np.zeros((3, 4), "int32"),
    }


def step_of(language):
    """The language's step, which finds the last id but one among those of the sentence."""

    def step(ids, state):
        given, ancestors, place = state["sentences"]["given"], state["ancestors"], state["step"]
        sentences = ops.shape(given)[0]
        beams = ops.shape(ids)[0] // sentences
        now = ops.take(place, 0)
        own = ops.arange(ops.shape(ids)[0], dtype="int32") % beams
        columns = ops.pad(
            ops.reshape(ids, (sentences, beams)), [[0, 0], [0, given.shape[2] - beams]]
        )
        given = ops.where(np.arange(4)[:, None] == now, columns[:, None, :], given)
        ancestors = ops.where(np.arange(4) == now, own[:, None], ancestors)
        of_rows = ops.repeat(given, beams, axis=0)
        history = ops.take_along_axis(of_rows, ancestors[..., None], axis=2)[..., 0]
        previous = ops.where(now > 0, ops.take(history, ops.maximum(now - 1, 0), axis=1), 0)
        logits, _ = language.step(
            ids, {"context": state["context"], "step": place, "previous": previous}
        )
        return logits, {
            **state,
            "sentences": {"given": given},
            "ancestors": ancestors,
            "step": place + 1,
        }

    return step


def assert_same(ours, theirs):
    for ours_x, theirs_x in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(
            ops.convert_to_numpy(ours_x), ops.convert_to_numpy(theirs_x), rtol=1e-6
        )


@pytest.mark.parametrize("beam_size", [1, 2, 5])
@pytest.mark.parametrize("settings", [{}, {"no_repeat_ngram_size": 2, "min_length": 2}], ids=str)
def test_beam_search(language, beam_size, settings):
    settings = {
        "beam_size": beam_size,
        "num_results": beam_size,
        "length_limit": LIMITS,
        **settings,
    }
    plain = beam_search(language.step, language.start(), 3, 4, **settings)
    assert_same(beam_search(step_of(language), start(language, beam_size), 3, 4, **settings), plain)


def test_in_a_graph_whose_sentences_leave(language):
    tf = pytest.importorskip("tensorflow")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("a TensorFlow graph")
    settings = {"beam_size": 3, "num_results": 3}
    plain = beam_search(language.step, language.start(), 3, 4, length_limit=LIMITS, **settings)
    state = start(language, 3)
    specs = tf.nest.map_structure(lambda x: tf.TensorSpec([None, *x.shape[1:]], tf.int32), state)

    @tf.function(input_signature=[specs, tf.TensorSpec([None], tf.int32)])
    def graph(state, limits):
        return beam_search(
            step_of(language), state, tf.size(limits), 4, length_limit=limits, **settings
        )

    assert_same(graph(tf.nest.map_structure(tf.constant, state), tf.constant(LIMITS)), plain)


def test_sampling(language, rng):
    settings = {
        "num_results": 7,
        "uniform": rng.random((3, 7, 4), "float32"),
        "length_limit": LIMITS,
    }
    plain = sample_search(language.step, language.start(), 3, 4, **settings)
    assert_same(sample_search(step_of(language), start(language, 7), 3, 4, **settings), plain)
