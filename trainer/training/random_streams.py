"""Separate dropout masks for every replica and every micro-batch."""

from collections.abc import Callable

import keras
import tensorflow as tf

from trainer.training import keras_compat

# Coprime with 2^31 - 2, by which Keras reduces seeds: no two streams get the same seed.
_STRIDE = 1_640_531_527


class RandomStreams:
    """Independent random streams of a model's seed generators.

    Keras's generators have a state [seed, number of the next draw], of which every replica has a
    copy. Stream 0 draws what Keras would. The others change the seed only, so all replicas get the
    same state, however many streams they use.

    Args:
        model: a built model.
    """

    def __init__(self, model: keras.Model):
        self._states = keras_compat.seed_states(model)

    def draw(self, number: tf.Tensor | int, function: Callable):
        """Calls a function whose random draws come from a stream. The generators do not change.

        Args:
            number: number of the stream, from 0 to 2^31 - 3.
            function: takes no arguments.

        Returns:
            The function's result, and the states of the generators after it, for `move_to`.
        """
        shift = tf.stack([tf.cast(number, tf.int64) * _STRIDE, 0])
        scope = keras.StatelessScope(
            state_mapping=[(state, state.value + shift) for state in self._states]
        )
        with scope:
            result = function()
        return result, [scope.get_current_value(state) - shift for state in self._states]

    def states(self) -> list[tf.Tensor]:
        """Returns the states of the generators."""
        return [tf.identity(state.value) for state in self._states]

    def move_to(self, states: list[tf.Tensor]):
        """Sets the states of the generators."""
        for state, value in zip(self._states, states):
            state.assign(value)
