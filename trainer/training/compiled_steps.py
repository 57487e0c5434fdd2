"""Training steps that XLA compiles: whole steps on one device, parts of steps on several.

XLA can't compile a step that runs on several devices. It can compile the part between the sums over
replicas: the loss and the gradients of a replica.
"""

import time
from collections.abc import Callable, Iterator

import tensorflow as tf

from ..errors import plain_message
from .batch_parts import sum_over_replicas


class CompiledStep:
    """A Keras train function that compiles XLA programs for each batch shape.

    Keras traces one function with unknown lengths. Here, lengths are known in every trace, so that
    attention can select its implementation by length.

    On one device, XLA compiles the whole step: a program per shape. With a MirroredStrategy, the
    step itself compiles its parts with `CompiledOnReplicas`: a program per shape and replica. The
    batches of all replicas of a step must have the same shape.

    If a call compiles, its logs also have `programs`, the number of programs so far, and
    `compile_seconds`, the duration of the step.

    Args:
        train_step: function that takes a batch, or that of a replica, and returns logs.
        strategy: the MirroredStrategy, or None for one device.
    """

    def __init__(
        self, train_step: Callable, strategy: tf.distribute.MirroredStrategy | None = None
    ):
        if strategy is None:
            self._replicas = 1
            self._step = tf.function(train_step, jit_compile=True, autograph=False)
        else:
            self._replicas = strategy.num_replicas_in_sync
            self._step = tf.function(_on_replicas(train_step, strategy), autograph=False)
        self._shapes = set()

    def __call__(self, iterator: Iterator) -> dict:
        batch = next(iterator)
        tensors = tf.nest.flatten(batch, expand_composites=True)
        shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        start = time.perf_counter()
        logs = self._step(batch)
        if shapes not in self._shapes:
            self._shapes.add(shapes)
            programs = len(self._shapes) * self._replicas
            logs |= {"programs": programs, "compile_seconds": time.perf_counter() - start}
        return logs


def _on_replicas(train_step, strategy):
    """Returns a step that runs on all replicas and returns the logs of the first."""

    def step(batch):
        logs = strategy.run(train_step, args=(batch,))
        # All replicas have the same logs, because they are made of sums.
        return {key: strategy.experimental_local_results(value)[0] for key, value in logs.items()}

    return step


class CompiledOnReplicas:
    """A function that XLA compiles for each replica and each shape of its arguments.

    It is called in the replica context of a step, inside the `tf.function` of the step. Every
    replica has its own `tf.function`, so that no program contains variables of another device.

    Lengths are known while a replica is traced if they are known in the step. This is the case if
    the step takes the batch as an argument. If it takes the iterator, lengths are unknown.

    Args:
        function: function of tensors, which may read variables. It must not sum over replicas and
            must not update mirrored variables: the caller does this with its results.

    Example:

    >>> import tensorflow as tf
    >>> from trainer.training.compiled_steps import CompiledOnReplicas
    >>> strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    >>> with strategy.scope():
    ...     weight = tf.Variable([[2.0]])
    >>> @CompiledOnReplicas
    ... def differentiate(x):
    ...     with tf.GradientTape() as tape:
    ...         loss = tf.reduce_sum((x @ weight) ** 2)
    ...     return loss, tape.gradient(loss, weight)
    >>> @tf.function
    ... def step(x):
    ...     return strategy.run(differentiate, args=(x,))
    >>> loss, gradient = step(tf.constant([[1.0], [3.0]]))
    >>> float(loss), gradient.numpy().tolist()
    (40.0, [[40.0]])
    """

    def __init__(self, function: Callable):
        self._function = function
        self._compiled = {}

    def __call__(self, *args):
        return self.current_function()(*args)

    def current_function(self):
        """Returns the `tf.function` of the current replica."""
        replica = int(tf.get_static_value(_replica_id()))
        if replica not in self._compiled:
            compiled = tf.function(self._function, jit_compile=True, autograph=False)
            self._compiled[replica] = compiled
        return self._compiled[replica]


def xla_error(strategy: tf.distribute.Strategy) -> str | None:
    """Runs a small compiled program on each replica. Returns its error as one line, or None."""
    try:
        found = [tf.reshape(x, [-1]).numpy().tolist() for x in _small_gradients(strategy)]
        replicas = strategy.num_replicas_in_sync
        expected = 2.0 * sum(number**2 for number in range(1, replicas + 1))
        if any(value != expected for gradient in found for value in gradient):
            return f"wrong results: {found}, not {expected}"
    except Exception as error:  # Whatever fails, training can continue without XLA.
        message = plain_message(error) if isinstance(error, tf.errors.OpError) else str(error)
        return f"{type(error).__name__}: {' '.join(message.split())}"
    return None


def _small_gradients(strategy):
    """Returns the gradient of a small loss, summed over replicas, on each of them."""
    with strategy.scope():
        weight = tf.Variable(tf.eye(2))

    @CompiledOnReplicas
    def differentiate(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x @ weight) ** 2)
        return tape.gradient(loss, weight)

    def replica_step():
        x = tf.fill([1, 2], _replica_id() + 1)
        return sum_over_replicas(differentiate(tf.cast(x, tf.float32)))

    step = tf.function(lambda: strategy.run(replica_step), autograph=False)
    return strategy.experimental_local_results(step())


def _replica_id():
    return tf.distribute.get_replica_context().replica_id_in_sync_group
