"""Compares searches with per-sentence state and with per-hypothesis state.

The search reorders per-hypothesis state. Per-sentence state keeps its order.
"""

import numpy as np
import pytest
from comparisons import assert_all_close
from compilation import compile_function
from keras import ops

from t2t_relpos.decoding import beam_search, greedy_search, sample_search

LIMITS = np.array([4, 2, 3], "int32")


def sentence_state(language, most_beams):
    """Returns an initial state that stores, for each sentence, all input ids of each step."""
    given, ancestors = np.zeros((3, 4, most_beams), "int32"), np.zeros((3, 4), "int32")
    state = {"sentences": {"given": given}, "ancestors": ancestors}
    return state | {name: language.start()[name] for name in ("context", "step")}


def sentence_state_step(language):
    """Returns a step function that reads the previous id from the per-sentence state."""

    def step(ids, state):
        given, ancestors, position = state["sentences"]["given"], state["ancestors"], state["step"]
        rows, sentences = ops.shape(ids)[0], ops.shape(given)[0]
        beams = rows // sentences
        now = ops.take(position, 0)
        columns = ops.reshape(ids, (sentences, beams))
        columns = ops.pad(columns, [[0, 0], [0, given.shape[2] - beams]])
        given = ops.where(np.arange(4)[:, None] == now, columns[:, None, :], given)
        own = ops.arange(rows, dtype="int32") % beams
        ancestors = ops.where(np.arange(4) == now, own[:, None], ancestors)
        of_rows = ops.repeat(given, beams, axis=0)
        history = ops.take_along_axis(of_rows, ancestors[..., None], axis=2)[..., 0]
        previous = ops.where(now > 0, ops.take(history, ops.maximum(now - 1, 0), axis=1), 0)
        inputs = {"context": state["context"], "step": position, "previous": previous}
        changed = {"sentences": {"given": given}, "ancestors": ancestors, "step": position + 1}
        return language.step(ids, inputs)[0], {**state, **changed}

    return step


@pytest.mark.parametrize(
    "beam_size, rules", [(1, {}), (2, {"no_repeat_ngram_size": 2, "min_length": 2}), (5, {})]
)
def test_beam_search_with_per_sentence_state_is_equal(language, beam_size, rules):
    settings = {"beam_size": beam_size, "num_results": beam_size, "length_limit": LIMITS, **rules}
    step, state = sentence_state_step(language), sentence_state(language, beam_size)
    found = beam_search(step, state, 3, 4, **settings)
    expected = beam_search(language.step, language.start(), 3, 4, **settings)
    assert_all_close(found, expected, rtol=1e-6)


def test_beam_search_removes_finished_sentences_from_per_sentence_state(language, tf):
    settings = {"beam_size": 3, "num_results": 3}
    state = tf.nest.map_structure(tf.constant, sentence_state(language, 3))
    specs = tf.nest.map_structure(lambda x: tf.TensorSpec([None, *x.shape[1:]], tf.int32), state)

    @tf.function(input_signature=[specs, tf.TensorSpec([None], tf.int32)])
    def graph(state, limits):
        step, batch_size = sentence_state_step(language), tf.size(limits)
        return beam_search(step, state, batch_size, 4, length_limit=limits, **settings)

    expected = beam_search(language.step, language.start(), 3, 4, length_limit=LIMITS, **settings)
    assert_all_close(graph(state, tf.constant(LIMITS)), expected, rtol=1e-6)


def test_sample_search_with_per_sentence_state_is_equal(language, rng):
    uniform = rng.random((3, 7, 4), "float32")
    settings = {"num_results": 7, "uniform": uniform, "length_limit": LIMITS}
    step, state = sentence_state_step(language), sentence_state(language, 7)
    found = sample_search(step, state, 3, 4, **settings)
    expected = sample_search(language.step, language.start(), 3, 4, **settings)
    assert_all_close(found, expected, rtol=1e-6)


class CountingStep:
    """A step with a state that it enlarges, and with tensors that it does not change."""

    def __init__(self, table, sizes):
        self.table = table
        self.sizes = sizes

    def __call__(self, ids, state):
        logits = ops.take(self.table, ids, axis=0)
        parts = state["cache"], state["sentences"]["bias"], state["row"], state["context"]["bias"]
        for part in parts:
            rows = ops.repeat(part, ops.shape(ids)[0] // ops.shape(part)[0], axis=0)
            logits = logits + ops.max(rows, axis=1, keepdims=True) * self.table[0]
        return logits, {**state, "cache": state["cache"] + 0.01}

    def resize(self, state, num_steps):
        self.sizes.append(num_steps)
        cache = ops.pad(state["cache"], [[0, 0], [0, num_steps]])[:, :num_steps]
        return {**state, "cache": cache}


@pytest.mark.parametrize("search", [beam_search, greedy_search, sample_search])
def test_searches_remove_finished_sentences(language, search, tf):
    rows = []

    def step(ids, state):
        rows.append(ids.shape[0])
        return language.step(ids, state)

    settings = {"beam_size": 1} if search is beam_search else {}
    limits = np.array([2, 1, 4], "int32")
    search(step, language.start(), 3, 4, length_limit=limits, stop_token_ids=(), **settings)
    assert rows == [3, 2, 1, 1]


@pytest.mark.parametrize("search", [beam_search, sample_search])
def test_compiled_searches_accept_constants_in_the_state(search, rng):
    """40 steps are three loops of a compiled search."""
    length, table = 40, rng.normal(size=(5, 5)).astype("float32")
    uniform = rng.random((3, 1, length), "float32")
    settings = {"uniform": uniform} if search is sample_search else {}

    def run(sentences):
        state = {
            "cache": ops.zeros((3, length)),
            "row": ops.ones((3, 2)),
            "context": {"bias": ops.ones((3, 2))},
            "sentences": {"bias": ops.ones((3, 2)), "empty": ops.ones((3, 0))},
        }
        step = CountingStep(ops.convert_to_tensor(table), sizes)
        return search(step, state, 3, length, prefix=sentences, stop_token_ids=(), **settings)

    prefix = np.array([[2], [3], [4]])
    sizes = []
    found = compile_function(run)(prefix)
    # Each loop has a state of its size.
    assert sizes[:3] == [16, 32, 40]
    expected = run(prefix)
    assert_all_close(found, expected, rtol=1e-5)
    assert found.lengths.shape == (3, 1) and (ops.convert_to_numpy(found.ids) > 0).all()
