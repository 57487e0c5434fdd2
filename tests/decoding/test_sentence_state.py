"""Compares searches with per-sentence state and with per-hypothesis state.

The search reorders per-hypothesis state. Per-sentence state keeps its order.
"""

import numpy as np
import pytest
from comparisons import assert_all_close
from keras import ops

from t2t_relpos.decoding import beam_search, sample_search

LIMITS = np.array([4, 2, 3], "int32")


def sentence_state(language, most_beams):
    """Returns an initial state that stores, for each sentence, all input ids of each step."""
    state = language.start()
    return {
        "context": state["context"],
        "step": state["step"],
        "sentences": {"given": np.zeros((3, 4, most_beams), "int32")},
        "ancestors": np.zeros((3, 4), "int32"),
    }


def sentence_state_step(language):
    """Returns a step function that reads the previous id from the per-sentence state."""

    def step(ids, state):
        given, ancestors, position = state["sentences"]["given"], state["ancestors"], state["step"]
        sentences = ops.shape(given)[0]
        beams = ops.shape(ids)[0] // sentences
        now = ops.take(position, 0)
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
            ids, {"context": state["context"], "step": position, "previous": previous}
        )
        return logits, {
            **state,
            "sentences": {"given": given},
            "ancestors": ancestors,
            "step": position + 1,
        }

    return step


@pytest.mark.parametrize("beam_size", [1, 2, 5])
@pytest.mark.parametrize("settings", [{}, {"no_repeat_ngram_size": 2, "min_length": 2}], ids=str)
def test_beam_search_with_per_sentence_state_is_equal(language, beam_size, settings):
    settings = {
        "beam_size": beam_size,
        "num_results": beam_size,
        "length_limit": LIMITS,
        **settings,
    }
    plain = beam_search(language.step, language.start(), 3, 4, **settings)
    assert_all_close(
        beam_search(
            sentence_state_step(language), sentence_state(language, beam_size), 3, 4, **settings
        ),
        plain,
        rtol=1e-6,
    )


def test_beam_search_removes_finished_sentences_from_per_sentence_state(language, tf):
    settings = {"beam_size": 3, "num_results": 3}
    plain = beam_search(language.step, language.start(), 3, 4, length_limit=LIMITS, **settings)
    state = sentence_state(language, 3)
    specs = tf.nest.map_structure(lambda x: tf.TensorSpec([None, *x.shape[1:]], tf.int32), state)

    @tf.function(input_signature=[specs, tf.TensorSpec([None], tf.int32)])
    def graph(state, limits):
        return beam_search(
            sentence_state_step(language),
            state,
            tf.size(limits),
            4,
            length_limit=limits,
            **settings,
        )

    assert_all_close(
        graph(tf.nest.map_structure(tf.constant, state), tf.constant(LIMITS)), plain, rtol=1e-6
    )


def test_sample_search_with_per_sentence_state_is_equal(language, rng):
    settings = {
        "num_results": 7,
        "uniform": rng.random((3, 7, 4), "float32"),
        "length_limit": LIMITS,
    }
    plain = sample_search(language.step, language.start(), 3, 4, **settings)
    assert_all_close(
        sample_search(sentence_state_step(language), sentence_state(language, 7), 3, 4, **settings),
        plain,
        rtol=1e-6,
    )
