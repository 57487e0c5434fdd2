"""Callbacks that count steps, end training, and write checkpoints."""

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable

import keras

from ..model_dir import ModelDirectory
from ..streams import report, write_line
from .checkpoints import Checkpoints
from .optimizer import LossScale

# Consecutive updates that the smallest loss scale may skip. One bad batch must not end a run.
_MOST_SKIPPED = 10
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Context manager in which SIGINT, SIGTERM and SIGHUP end a run after the current step.

    A signal is reported on the standard error at once, also while TensorFlow compiles. A second
    signal has its default effect. With nohup, SIGHUP is still ignored.

    Args:
        end_at_once: function of a signal that ends the process. A thread calls it while nothing is
            lost, before `Steps` has counted a step. Default: None, all runs end after a step.

    Attributes:
        received: the received signal, or None.
    """

    def __init__(self, end_at_once: Callable[[signal.Signals], None] | None = None):
        self.received = None
        self.end_at_once = end_at_once
        self._previous = {}
        self._wakeup = None

    def __enter__(self):
        # Python allows signal handlers in the main thread only.
        if threading.current_thread() is threading.main_thread():
            self._report_from_thread()
            for number in _STOP_SIGNALS:
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error):
        self._restore()
        if self._wakeup is not None:
            signal.set_wakeup_fd(self._previous_wakeup)
            os.close(self._wakeup)  # Ends the thread.
            self._thread.join()
            self._wakeup = None

    def _report_from_thread(self):
        """Starts a thread that reports the first signal, or ends the process.

        Python calls handlers when the current operation of the main thread ends. The compilation of
        a step can take minutes.
        """
        reader, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        self._previous_wakeup = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._report, args=(reader,), daemon=True)
        self._thread.start()

    def _report(self, reader):
        """Waits for the number of a signal, or for the end of a pipe."""
        with open(reader, "rb", buffering=0) as pipe:
            while number := pipe.read(1):
                if number[0] in _STOP_SIGNALS:
                    received = signal.Signals(number[0])
                    if self.end_at_once is not None:
                        self.end_at_once(received)
                    report(f"\n{received.name}: training ends after the current step.")
                    return

    def _receive(self, number, frame):
        self.received = signal.Signals(number)
        self._restore()

    def _restore(self):
        while self._previous:
            signal.signal(*self._previous.popitem())


class Steps(keras.callbacks.Callback):
    """Callback that counts batches, and ends training after the last one or after a signal.

    It must be the first callback, because the others read `step` from it: the number of batches
    that the model was trained on, `first` before this run.
    """

    def __init__(self, first: int, last: int, signals: StopSignals | None = None):
        super().__init__()
        self.step = first
        self.last = last
        self.signals = signals or StopSignals()
        self._seconds_paused = 0.0

    @property
    def interrupted(self) -> bool:
        return self.signals.received is not None

    def on_train_batch_end(self, batch, logs=None):
        self.signals.end_at_once = None
        self.step += 1
        if self.step >= self.last or self.interrupted:
            self.model.stop_training = True

    def on_test_batch_end(self, batch, logs=None):
        if self.interrupted:
            self.model.stop_evaluating = True

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


class FirstStep(keras.callbacks.Callback):
    """Callback that prints what a run waits for, and measures how long it takes.

    Args:
        seconds: duration of the first step of the run's last start, or None.
        record: function that is called with the duration of the first step.
    """

    def __init__(self, seconds: float | None, record: Callable[[float], None]):
        super().__init__()
        self._seconds, self._record, self._start = seconds, record, None

    def on_train_begin(self, logs=None):
        if self._start is None:
            last = "This can take a minute or more."
            if self._seconds is not None:
                last = f"It took {self._seconds:.0f} s the last time."
            write_line(f"Tracing and compiling the first training step. {last}")
            self._start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        if self._record is not None:
            self._record(round(time.perf_counter() - self._start, 1))
            self._record = None


class NotFiniteError(ValueError):
    """A loss or a gradient norm is infinite or not a number."""


class StopAtNan(keras.callbacks.Callback):
    """Callback that ends the run if the loss or gradient norm is not finite.

    In float16, updates with gradients that are not finite are skipped. The run ends if several of
    them follow each other at the smallest loss scale. `schedule` is the learning rate as a function
    of the update, from 0.
    """

    def __init__(self, steps: Steps, schedule: Callable):
        super().__init__()
        self._steps = steps
        self._schedule = schedule
        self._skipped = 0

    def on_train_batch_end(self, batch, logs=None):
        for name in ("loss",) if "loss_scale" in logs else ("loss", "gradient_norm"):
            if not math.isfinite(logs.get(name, 0.0)):
                raise NotFiniteError(self._message(name.replace("_", " "), logs[name]))
        at_smallest = logs.get("loss_scale", math.inf) <= LossScale.smallest
        is_skipped = at_smallest and not math.isfinite(logs["gradient_norm"])
        self._skipped = self._skipped + 1 if is_skipped else 0
        if self._skipped >= _MOST_SKIPPED:
            name = f"gradient norm at the smallest loss scale, {LossScale.smallest:.3g}"
            message = self._message(name, logs["gradient_norm"])
            raise NotFiniteError(f"{message} Or train without --precision=float16.")

    def _message(self, name, value):
        step = self._steps.step
        return (
            f"Expected a finite {name}. Received: {value} at step {step}, with learning rate "
            f"{float(self._schedule(step - 1)):.3g}. No checkpoint was written since. Start from "
            "the last one in another --model_dir: give this directory as --init_from, and lower "
            "--learning_rate, raise --warmup_steps, or set --clip_norm."
        )


class WriteCheckpoints(keras.callbacks.Callback):
    """Callback that writes model.keras and checkpoints at intervals and when training ends.

    The interval is `every` steps, `minutes`, or the shorter one of both.
    """

    def __init__(
        self,
        steps: Steps,
        directory: ModelDirectory,
        checkpoints: Checkpoints,
        every: int | None = None,
        minutes: float | None = None,
    ):
        super().__init__()
        self._steps = steps
        self._directory = directory
        self._checkpoints = checkpoints
        self._every = every
        self._minutes = minutes
        self._written, self._time = steps.step, time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        is_due = self._every is not None and self._steps.step % self._every == 0
        if self._minutes is not None:
            is_due |= time.monotonic() - self._time >= 60 * self._minutes
        # If a signal is received between two callbacks, training ends one step later.
        if self.model.stop_training or is_due:
            self.write()

    def write(self):
        """Writes model.keras and a checkpoint, unless both exist for this step. Step 0 has none."""
        step = self._steps.step
        has_checkpoint = step == self._written
        if has_checkpoint and (step == 0 or self._directory.has_intact_model()):
            return
        with self._steps.paused():
            # No run resumes from a model.keras without a checkpoint.
            if not self._checkpoints.steps():
                self._checkpoints.save(self.model, step)
            self._directory.save_model(self.model.transformer)
            # Written after model.keras, which is then never older than the last checkpoint.
            if step not in self._checkpoints.steps():
                self._checkpoints.save(self.model, step)
        if has_checkpoint:
            file = self._directory.model_file
            write_line(f"{file} was missing or corrupt and has been rewritten")
            return
        self._written, self._time = step, time.monotonic()
        write_line(f"checkpoint {self._checkpoints.path(step)}")
