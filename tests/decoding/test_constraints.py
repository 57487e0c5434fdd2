"""Tests each constraint by value, and that a disabled constraint adds no ops to a graph."""

import numpy as np
import pytest
from keras import ops

from t2t_relpos.decoding import beam_search, constraints
from t2t_relpos.decoding.constraints import (
    FORBIDDEN,
    NEVER,
    Constraints,
    checked_constraints,
    constrain,
)

VOCAB = 7
IDS = np.array([[3, 4, 3, 4, 0], [5, 5, 5, 6, 0]], "int32")
POSITION = 4  # index of the next id, the last of five
ENABLED = (
    {"min_length": 1},
    {"prefix": IDS},
    {"no_repeat_ngram_size": 1},
    {"repetition_penalty": 0.9},
)


@pytest.fixture
def log_probs(rng):
    return np.log(rng.dirichlet(np.ones(VOCAB), size=2)).astype("float32")


def changed_entries(log_probs, result):
    """Returns `{(row, id): new value}` of the entries that differ from `log_probs`."""
    result = ops.convert_to_numpy(result)
    return {
        (int(row), int(i)): float(result[row, i]) for row, i in np.argwhere(result != log_probs)
    }


def test_forbid_padding_forbids_only_padding(log_probs):
    result = constraints.forbid_padding(log_probs, pad_id=2)
    assert changed_entries(log_probs, result) == {(0, 2): FORBIDDEN, (1, 2): FORBIDDEN}


@pytest.mark.parametrize("min_length", [4, 5, np.int32(4), np.int32(5)], ids=repr)
def test_forbid_early_end_applies_below_min_length(log_probs, min_length):
    result = constraints.forbid_early_end(
        log_probs, POSITION, ops.convert_to_tensor(min_length), eos_id=1
    )
    early = {(0, 1): NEVER, (1, 1): NEVER}
    assert changed_entries(log_probs, result) == (early if min_length > POSITION else {})


def test_penalize_repetitions_penalizes_repeated_ids_once(log_probs):
    found = changed_entries(log_probs, constraints.penalize_repetitions(log_probs, IDS, 2.5))
    # Padding occurs in `ids`, so it is penalized too. `forbid_padding` excludes it anyway.
    assert set(found) == {(0, 0), (0, 3), (0, 4), (1, 0), (1, 5), (1, 6)}
    for position, value in found.items():
        np.testing.assert_allclose(value, 2.5 * log_probs[position], rtol=1e-6)


def forbidden_by_repetition(log_probs, ids, position, size):
    """Returns the (row, id) that `forbid_repeated_ngrams` forbids, without padding."""
    result = constraints.forbid_repeated_ngrams(log_probs, ids, position, size, pad_id=0)
    found = {key: x for key, x in changed_entries(log_probs, result).items() if key[1] != 0}
    assert set(found.values()) <= {FORBIDDEN}
    return set(found)


@pytest.mark.parametrize(
    "size, expected",
    [
        (1, {(0, 3), (0, 4), (1, 5), (1, 6)}),
        (2, {(0, 3)}),  # in row 0, 3 followed 4; in row 1, nothing followed 6
        (3, {(0, 3)}),  # 3 followed (3, 4)
        (4, set()),
        (5, set()),
        (6, set()),
    ],
)
def test_forbid_repeated_ngrams_forbids_completions(log_probs, size, expected):
    assert forbidden_by_repetition(log_probs, IDS, POSITION, size) == expected


def test_forbid_repeated_ngrams_handles_overlaps(log_probs):
    ids = np.array([[5, 5, 5, 0, 0], [5, 6, 5, 0, 0]], "int32")
    assert forbidden_by_repetition(log_probs, ids, 3, 2) == {(0, 5), (1, 6)}


@pytest.mark.parametrize("position, forced", [(0, [3, 0]), (1, [4, 0]), (2, [0, 0]), (9, [0, 0])])
def test_force_prefix_allows_only_the_prefix(log_probs, position, forced):
    prefix = np.array([[3, 4], [0, 0]], "int32")
    result = constraints.force_prefix(log_probs - 1, log_probs, position, prefix, pad_id=0)
    expected = log_probs - 1
    for row, token in enumerate(forced):
        if token:
            expected[row] = FORBIDDEN
            expected[row, token] = log_probs[row, token]
    np.testing.assert_array_equal(result, expected)


def test_force_prefix_overrides_other_constraints(log_probs):
    rules = Constraints(5, np.array([[0] * 4 + [1], [0] * 4 + [5]], "int32"), 1, 2.0)
    result = ops.convert_to_numpy(constrain(log_probs, IDS, POSITION, rules))
    assert result.argmax(-1).tolist() == [1, 5]
    np.testing.assert_array_equal(result.max(-1), log_probs[[0, 1], [1, 5]])


def test_constraints_any_is_false_only_for_defaults():
    assert not Constraints().any
    assert not checked_constraints(0, None, 0, 1).any
    for rules in ENABLED:
        assert Constraints(**rules).any
    assert Constraints(min_length=ops.convert_to_tensor(0)).any


def number_of_ops(function, *specs):
    """Returns the number of ops in a function's TensorFlow graph and its function library."""
    import tensorflow as tf

    graph = tf.function(function).get_concrete_function(*specs).graph.as_graph_def()
    bodies = [list(function.node_def) for function in graph.library.function]
    return len(graph.node) + sum(map(len, bodies))


def test_disabled_constraints_add_no_ops(language, tf):
    def constrained(**rules):
        specs = tf.TensorSpec([None, VOCAB]), tf.TensorSpec([None, 5], tf.int32)
        return number_of_ops(
            lambda log_probs, ids: constrain(log_probs, ids, POSITION, Constraints(**rules)), *specs
        )

    def search(**rules):
        def find(sentences):
            return beam_search(
                language.step, language.start(sentences), tf.size(sentences), 4, **rules
            )

        return number_of_ops(find, tf.TensorSpec([None], tf.int32))

    padding_only = number_of_ops(
        lambda log_probs: constraints.forbid_padding(log_probs, 0), tf.TensorSpec([None, VOCAB])
    )
    assert constrained() == padding_only + 1  # the unused placeholder `ids`
    for rules in ENABLED:
        assert constrained(**rules) > constrained() + 3
    disabled = {"min_length": 0, "prefix": None, "no_repeat_ngram_size": 0}
    assert search(**disabled, repetition_penalty=1.0) == search()


def test_beam_search_without_allowed_ids_ends_the_sentence(language):
    """With three distinct words and `min_length` 4, no id is allowed at the fourth position."""
    rules = {"min_length": 4, "no_repeat_ngram_size": 1}
    result = beam_search(language.step, language.start(), 3, 4, beam_size=64, **rules)
    for ids, length in zip(
        ops.convert_to_numpy(result.ids)[:, 0], ops.convert_to_numpy(result.lengths)[:, 0]
    ):
        assert ids.tolist().index(1) + 1 == length
        assert not ids[length:].any()
