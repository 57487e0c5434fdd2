"""Training steps that XLA compiles."""

import time
from collections.abc import Callable, Iterator

import tensorflow as tf


class CompiledStep:
    """A Keras train function that compiles one XLA program per batch shape.

    Keras traces one function with unknown lengths. Here, lengths are known in every trace, so that
    attention can select its implementation by length.

    If a call compiles, its logs also have `programs`, the number of programs so far, and
    `compile_seconds`, the duration of the steps that compiled.

    Args:
        train_step: function that takes a batch and returns the logs of a step.
        steps: number of steps in a call.
    """

    def __init__(self, train_step: Callable, steps: int = 1):
        self._step = tf.function(train_step, jit_compile=True, autograph=False)
        self._steps = steps
        self._shapes = set()

    def __call__(self, iterator: Iterator) -> dict:
        """Runs the steps. Returns the logs of the last one."""
        compile_seconds = 0.0
        for _ in range(self._steps):
            batch = next(iterator)
            shapes = tuple(tuple(tensor.shape) for tensor in tf.nest.flatten(batch))
            start = time.perf_counter()
            logs = self._step(batch)
            if shapes not in self._shapes:
                self._shapes.add(shapes)
                compile_seconds += time.perf_counter() - start
        if compile_seconds:
            logs |= {"programs": len(self._shapes), "compile_seconds": compile_seconds}
        return logs
