"""Communication between the processes of a run, apart from gradients."""

import contextlib
import math
from collections.abc import Callable

import tensorflow as tf

from trainer.serving.translator import plain_message

# TensorFlow raises one of these errors if a process is lost, depending on the current operation.
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
)


class WorkerLostError(RuntimeError):
    """Another process of the run has ended."""


class WorkerGroup:
    """The processes of a strategy. Only the chief, which is worker 0, writes files and prints.

    Args:
        strategy: the strategy of the run. It may have a single process.

    Attributes:
        size: number of processes.
        index: number of this process.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self._strategy = strategy
        resolver = strategy.cluster_resolver
        self.size = len(resolver.cluster_spec().job_tasks("worker")) if resolver else 1
        self.index = resolver.task_id if resolver and self.size > 1 else 0
        self._from_first = tf.function(
            lambda value: strategy.run(_from_first_replica, args=(value,))
        )

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief."""
        return self.index == 0

    def wait(self):
        """Waits until all workers call this method."""
        self.from_chief(0.0)

    @contextlib.contextmanager
    def chief_first(self):
        """Runs the `with` block on the chief first, then on the other workers."""
        if not self.is_chief:
            self.wait()
        yield
        if self.is_chief:
            self.wait()

    def from_chief(self, value: float | None) -> float | None:
        """Returns the chief's value. All workers must call this method at the same point."""
        if self.size == 1:
            return value
        number = math.nan if value is None else value
        results = self._from_first(tf.constant(number, tf.float64))
        found = float(self._strategy.experimental_local_results(results)[0])
        return None if math.isnan(found) else found

    def check_same(self, value: int, description: str):
        """Checks that an integer is equal to the chief's.

        Args:
            value: an integer below 2^53.
            description: the expected state in the error message, such as "the same settings".

        Raises:
            ValueError: on workers whose value differs.
        """
        expected = int(self.from_chief(float(value)))
        if value != expected:
            raise ValueError(
                f"Expected {description} on all workers. Received: {value} on worker "
                f"{self.index}, {expected} on worker 0."
            )

    @contextlib.contextmanager
    def detecting_lost_workers(self, remedy: Callable[[], str]):
        """Converts TensorFlow's errors for a lost process to WorkerLostError.

        Args:
            remedy: function that returns the end of the error message, with instructions.

        Raises:
            WorkerLostError: if another process has ended.
        """
        try:
            yield
        except _LOST as error:
            if self.size == 1:
                raise
            raise WorkerLostError(
                f"Lost connection to a worker (detected by worker {self.index} of {self.size}: "
                f"{type(error).__name__}: {plain_message(error)}). {remedy()}"
            ) from error


def _from_first_replica(value):
    context = tf.distribute.get_replica_context()
    is_first = tf.equal(context.replica_id_in_sync_group, 0)
    return context.all_reduce(
        tf.distribute.ReduceOp.SUM, tf.where(is_first, value, tf.zeros_like(value))
    )
