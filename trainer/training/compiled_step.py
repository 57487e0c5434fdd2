"""Training steps that XLA compiles."""

import time
from collections.abc import Callable, Iterator

import tensorflow as tf


class CompiledStep:
    """A Keras train function that compiles XLA programs for each batch shape.

    Keras traces one function with unknown lengths. Here, lengths are known in every trace, so that
    attention can select its implementation by length.

    On one device, XLA compiles the whole step: a program per shape. With a MirroredStrategy, the
    step itself compiles its parts with `CompiledOnReplicas`: a program per shape and replica. The
    batches of all replicas of a step must have the same shape.

    If a call compiles, its logs also have `programs`, the number of programs so far, and
    `compile_seconds`, the duration of the steps that compiled.

    Args:
        train_step: function that takes a batch, or that of a replica, and returns logs.
        steps: number of steps in a call.
        strategy: the MirroredStrategy, or None for one device.
    """

    def __init__(
        self,
        train_step: Callable,
        steps: int = 1,
        strategy: tf.distribute.MirroredStrategy | None = None,
    ):
        if strategy is None:
            self._replicas = 1
            self._step = tf.function(train_step, jit_compile=True, autograph=False)
        else:
            self._replicas = strategy.num_replicas_in_sync
            self._step = tf.function(_on_replicas(train_step, strategy), autograph=False)
        self._steps = steps
        self._shapes = set()

    def __call__(self, iterator: Iterator) -> dict:
        """Runs the steps. Returns the logs of the last one."""
        compile_seconds = 0.0
        for _ in range(self._steps):
            batch = next(iterator)
            tensors = tf.nest.flatten(batch, expand_composites=True)
            shapes = tuple(tuple(tensor.shape) for tensor in tensors)
            start = time.perf_counter()
            logs = self._step(batch)
            if shapes not in self._shapes:
                self._shapes.add(shapes)
                compile_seconds += time.perf_counter() - start
        if compile_seconds:
            programs = len(self._shapes) * self._replicas
            logs |= {"programs": programs, "compile_seconds": compile_seconds}
        return logs


def _on_replicas(train_step, strategy):
    """Returns a step that runs on all replicas and returns the logs of the first."""

    def step(batch):
        logs = strategy.run(train_step, args=(batch,))
        # All replicas have the same logs, because they are made of sums.
        return {key: strategy.experimental_local_results(value)[0] for key, value in logs.items()}

    return step
