"""Separate dropout masks for every replica and every micro-batch."""

from collections.abc import Callable

import keras
import tensorflow as tf

from trainer.training import keras_compat

# Coprime with 2^31 - 2, which Keras takes seeds modulo of: no two numbers of streams move a seed to
# the same place.
_STRIDE = 1_640_531_527


class RandomStreams:
    """The random generators of a model, as many independent streams of each.

    Keras's generators have a state [seed, number of the next draw]. Every replica has a copy.
    Stream 0 draws what Keras would; the others move the seed, so that the same number of draws
    brings every replica to the same state however many streams it used.

    Args:
        model: a built model.
    """

    def __init__(self, model: keras.Model):
        self._states = keras_compat.seed_states(model)

    def draw(self, number: tf.Tensor | int, function: Callable):
        """Calls a function in which the model draws from a stream, without moving the generators.

        Args:
            number: of the stream, from 0 to 2^31 - 3.
            function: takes nothing.

        Returns:
            What the function returns, and the states of the generators after it, for `move_to`.
        """
        move = tf.stack([tf.cast(number, tf.int64) * _STRIDE, 0])
        scope = keras.StatelessScope(
            state_mapping=[(state, state.value + move) for state in self._states]
        )
        with scope:
            result = function()
        return result, [scope.get_current_value(state) - move for state in self._states]

    def states(self) -> list[tf.Tensor]:
        """The states that the generators have now."""
        return [tf.identity(state.value) for state in self._states]

    def move_to(self, states: list[tf.Tensor]):
        """Gives the generators the states that they have after this step."""
        for state, value in zip(self._states, states):
            state.assign(value)
