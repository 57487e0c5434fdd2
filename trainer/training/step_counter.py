"""Counter of training steps, which also ends training."""

import contextlib
import signal
import threading
import time

import keras


class StopSignals:
    """Context manager in which SIGINT, SIGTERM and SIGHUP end a run after the current step.

    A second signal has its default effect. With nohup, SIGHUP is still ignored.

    Attributes:
        received: the received signal, or None.
    """

    def __init__(self):
        self.received = None
        self._previous = {}

    def __enter__(self):
        # Python allows signal handlers in the main thread only.
        if threading.current_thread() is threading.main_thread():
            numbers = [signal.SIGINT, signal.SIGTERM]
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
                numbers.append(signal.SIGHUP)
            for number in numbers:
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error):
        self._restore()

    def _receive(self, number, frame):
        self.received = signal.Signals(number)
        self._restore()

    def _restore(self):
        while self._previous:
            signal.signal(*self._previous.popitem())


class Steps(keras.callbacks.Callback):
    """Callback that counts batches, and ends training after the last one or after a signal.

    It must be the first callback, because the others read the step from it.

    Args:
        first: number of batches that the model was trained on before this run.
        last: number of batches after which training ends.
        signals: the signals that end training and evaluation early.

    Attributes:
        step: number of batches that the model was trained on.
        before: value of `step` before the last execution, which may have several steps.
    """

    def __init__(self, first: int, last: int, signals: StopSignals | None = None):
        super().__init__()
        self.step = self.before = first
        self.last = last
        self.signals = signals or StopSignals()
        self._seconds_paused = 0.0

    @property
    def interrupted(self) -> bool:
        """Whether a signal was received."""
        return self.signals.received is not None

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch_start = self.step

    def on_train_batch_end(self, batch, logs=None):
        self.before, self.step = self.step, self._epoch_start + batch + 1
        if self.step >= self.last or self.interrupted:
            self.model.stop_training = True

    def on_test_batch_end(self, batch, logs=None):
        if self.interrupted:
            self.model.stop_evaluating = True

    def passed(self, every: int) -> bool:
        """Returns whether the last execution reached or passed a multiple of `every`."""
        return self.step // every > self.before // every

    def clock(self) -> float:
        """Returns the time in seconds, excluding `paused` blocks."""
        return time.perf_counter() - self._seconds_paused

    @contextlib.contextmanager
    def paused(self):
        """Stops `clock` while the block runs."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds_paused += time.perf_counter() - start
