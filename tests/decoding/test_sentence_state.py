"""Tests of the states of searches: which sentences and how many positions they keep."""

import numpy as np
import pytest
from comparisons import assert_all_close
from compilation import compile_function
from keras import ops

from t2t_relpos.decoding import beam_search, greedy_search, sample_search


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
