import math

import keras
import numpy as np
import pytest

from trainer.training import batch_parts
from trainer.training.batch_parts import RandomStreams

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
