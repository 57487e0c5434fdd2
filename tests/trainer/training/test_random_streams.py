import math

import keras
import numpy as np
import pytest

from trainer.training import random_streams
from trainer.training.random_streams import RandomStreams


@pytest.fixture
def layers():
    """Returns a model with two dropout layers, one of which is called twice."""

    class Dropouts(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = keras.layers.Dropout(0.5), keras.layers.Dropout(0.5)

        def call(self, x, training=None):
            x = self.first(x, training=training)
            return self.second(self.first(x, training=training), training=training)

    model = Dropouts()
    model(np.zeros((1, 1)))
    return model


ONES = np.ones((31, 37), "float32")


def draw(layers, streams, number):
    return streams.draw(number, lambda: layers(ONES, training=True))


def test_stream_0_equals_keras(layers):
    streams = RandomStreams(layers)
    found, states = draw(layers, streams, 0)
    before = [state.numpy() for state in streams.states()]
    np.testing.assert_array_equal(found, layers(ONES, training=True))
    for state, moved, start, draws in zip(streams.states(), states, before, (2, 1)):
        np.testing.assert_array_equal(state, moved)
        np.testing.assert_array_equal(moved - start, [0, draws])


def test_streams_draw_different_masks_and_have_equal_states(layers):
    streams = RandomStreams(layers)
    found = [draw(layers, streams, number) for number in range(5)]
    masks = {(output.numpy() != 0).tobytes() for output, _ in found}
    assert len(masks) == 5
    for _, states in found[1:]:
        np.testing.assert_array_equal(states, found[0][1])


def test_masks_change_with_the_states(layers):
    streams = RandomStreams(layers)
    first, states = draw(layers, streams, 3)
    again, _ = draw(layers, streams, 3)
    np.testing.assert_array_equal(first, again)
    streams.set_states(states)
    after, _ = draw(layers, streams, 3)
    assert np.any(after.numpy() != first.numpy())


def test_all_streams_have_different_seeds():
    assert math.gcd(random_streams._STRIDE, 2**31 - 2) == 1
