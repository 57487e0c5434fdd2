"""Separate dropout masks for every replica and every micro-batch."""

from collections.abc import Callable

import keras
import tensorflow as tf

from trainer.training import keras_compat

# Keras reduces seeds modulo 2^31 - 2. The stride is coprime to it, so all streams have different
# seeds.
_STRIDE = 1_640_531_527


class RandomStreams:
    """Independent random streams from a model's seed generators.

    A seed generator of Keras has a state [seed, number of the next draw], and every replica has a
    copy of it. Stream 0 is equal to Keras's. Other streams change the seed only, so the states stay
    equal on all replicas, regardless of the number of streams.

    Args:
        model: a built model.
    """

    def __init__(self, model: keras.Model):
        self._states = keras_compat.seed_states(model)

    def draw(self, number: tf.Tensor | int, function: Callable):
        """Calls a function whose random draws come from a stream. The generators do not change.

        Args:
            number: number of the stream, from 0 to 2^31 - 3.
            function: function without arguments.

        Returns:
            The result of the function, and the new states of the generators, for `set_states`.
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

    def set_states(self, states: list[tf.Tensor]):
        """Sets the states of the generators."""
        for state, value in zip(self._states, states):
            state.assign(value)
