"""Which step a run is at, and when it ends."""

import contextlib
import math
import signal
import threading
import time

import keras


class StopSignals:
    """While this context is open, SIGINT (Ctrl-C) and SIGTERM ask the run to end in good order; a
    second one ends it at once.

    Attributes:
        received: the signal that came, or None.
    """

    def __init__(self):
        self.received = None
        self._before = {}

    def __enter__(self):
        # Python lets only the main thread handle signals.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error):
        self._restore()

    def _receive(self, number, frame):
        self.received = signal.Signals(number)
        self._restore()

    def _restore(self):
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


class Steps(keras.callbacks.Callback):
    """Counts the batches that a run has seen, and ends it after the last, or after the one in
    which a signal came.

    The first callback: the others read from it where they are.

    Args:
        first: number of batches seen before this run.
        last: number of batches after which it ends.
        signals: what may end it before.

    Attributes:
        step: number of batches seen.
        before: what `step` was before the last execution, which may hold several steps.
        seconds_paused: how long the run has done something else than training.
    """

    def __init__(self, first: int, last: int, signals: StopSignals | None = None):
        super().__init__()
        self.step = self.before = first
        self.last = last
        self.seconds_paused = 0.0
        self.signals = signals or StopSignals()

    @property
    def interrupted(self) -> bool:
        """Whether a signal has come."""
        return self.signals.received is not None

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch_start = self.step

    def on_train_batch_end(self, batch, logs=None):
        self.before, self.step = self.step, self._epoch_start + batch + 1
        if self.step >= self.last or self.interrupted:
            self.model.stop_training = True

    def passed(self, every: int) -> bool:
        """Whether a multiple of `every` is in the last execution."""
        return self.step // every > self.before // every

    @contextlib.contextmanager
    def paused(self):
        """Counts the time of a block to `seconds_paused`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds_paused += time.perf_counter() - start


def epochs_between(first: int, last: int, every: int) -> list[tuple[int, int]]:
    """How to divide steps into epochs that end at the multiples of `every`, wherever they begin.

    Returns:
        Pairs of a number of steps and how many epochs have it. The last epoch may extend beyond
        `last`, where `Steps` ends it.

    Example:

    >>> epochs_between(0, 1200, 500), epochs_between(1300, 3000, 500)
    ([(500, 3)], [(200, 1), (500, 3)])
    """
    start = min(math.ceil(first / every) * every, last)
    parts = [(start - first, 1), (min(every, last - start), math.ceil((last - start) / every))]
    return [(steps, epochs) for steps, epochs in parts if steps]
