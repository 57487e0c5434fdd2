"""Tests of micro-batches and of their random streams. test_replicas.py tests shards."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainer.training import batch_parts
from trainer.training.batch_parts import RandomStreams


def batch(rows, source_length=5, target_length=3):
    sizes = {"inputs": source_length, "targets": target_length}
    return {
        side: tf.reshape(tf.range(1, rows * length + 1), [rows, length])
        for side, length in sizes.items()
    }


@pytest.mark.parametrize(
    "rows, device_tokens, shape",
    [
        (7, 35, (1, 7)),
        (7, 34, (2, 4)),
        (7, 10, (4, 2)),
        (7, 9, (7, 1)),
        (7, 1, (7, 1)),  # an entry above device_tokens forms its own micro-batch
        (11, 20, (3, 4)),
        (1, 100, (1, 1)),
        (0, 100, (1, 1)),
    ],
)
def test_split_makes_few_micro_batches_of_equal_size(rows, device_tokens, shape):
    full = batch(rows)
    parts = batch_parts.split(full, device_tokens)
    for side, ids in parts.items():
        assert ids.shape == (*shape, full[side].shape[1])
        joined = tf.reshape(ids, [-1, ids.shape[-1]])
        np.testing.assert_array_equal(joined[:rows], full[side])
        assert not np.any(joined[rows:])


def test_split_counts_tokens_of_the_longer_side():
    parts = batch_parts.split(batch(6, source_length=2, target_length=5), 10)
    assert parts["inputs"].shape == (3, 2, 2)


@pytest.mark.parametrize("in_graph", [False, True])
def test_accumulate_sums_values_and_returns_the_last_states(in_graph):
    def compute(part, number):
        total = tf.cast(tf.reduce_sum(part["inputs"]), tf.float32)
        return total, [total * tf.cast(number, tf.float32)], [tf.constant(11)]

    def run(full):
        parts, like = batch_parts.split(full, 10), (tf.zeros([]), [tf.zeros([])])
        return batch_parts.accumulate(compute, parts, like, [tf.constant(0)])

    total, (weighted,), (state,) = (tf.function(run) if in_graph else run)(batch(5))
    # Ids 1–10, 11–20, and 21–25 with an entry of padding.
    assert (float(total), float(weighted), int(state)) == (325, 155 + 2 * 115, 11)


ONES = np.ones((31, 37), "float32")


class Dropouts(keras.Model):
    """A model with two dropout layers, one of which is called twice."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dropout(0.5), keras.layers.Dropout(0.5)

    def call(self, x):
        return self.second(self.first(self.first(x, training=True), training=True), training=True)


@pytest.fixture
def layers():
    model = Dropouts()
    model(np.zeros((1, 1)))
    return model


@pytest.fixture
def streams(layers):
    return RandomStreams(layers)


@pytest.fixture
def draw(layers, streams):
    return lambda number: streams.draw(number, lambda: layers(ONES))


def test_stream_0_equals_keras(layers, streams, draw):
    found, states = draw(0)
    before = [state.numpy() for state in streams.states()]
    np.testing.assert_array_equal(found, layers(ONES))
    for state, moved, start, draws in zip(streams.states(), states, before, (2, 1)):
        np.testing.assert_array_equal(state, moved)
        np.testing.assert_array_equal(moved - start, [0, draws])


def test_streams_draw_different_masks_and_have_equal_states(draw):
    found = [draw(number) for number in range(5)]
    assert len({(output.numpy() != 0).tobytes() for output, _ in found}) == 5
    for _, states in found[1:]:
        np.testing.assert_array_equal(states, found[0][1])


def test_masks_change_with_the_states(streams, draw):
    first, states = draw(3)
    np.testing.assert_array_equal(first, draw(3)[0])
    streams.set_states(states)
    assert np.any(draw(3)[0].numpy() != first.numpy())


def test_all_streams_have_different_seeds():
    assert math.gcd(batch_parts._STRIDE, 2**31 - 2) == 1
