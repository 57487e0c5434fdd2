"""What a run reports while it trains: on the terminal and in TensorBoard."""

import sys
import time
from pathlib import Path
from typing import NamedTuple

import keras
import tensorflow as tf


class StepRecord(NamedTuple):
    """Means over the steps since the last record. `tokens_per_second` counts source and target tokens."""

    step: int
    loss: float
    accuracy: float
    learning_rate: float
    tokens_per_second: float
    seconds_left: float


class _Window:
    """Sums of the steps since some moment, from the logs of `TrainingModel`, which are means since the epoch began."""

    def __init__(self, step, logs=None):
        self.start = time.perf_counter()
        self.step = step
        self.sums = self._sums(logs or {"loss": 0.0, "accuracy": 0.0, "tokens": 0.0, "target_tokens": 0.0})

    @staticmethod
    def _sums(logs):
        count = logs["target_tokens"]
        return [logs["loss"] * count, logs["accuracy"] * count, count, logs["tokens"]]

    def record(self, step, last_step, learning_rate, logs):
        loss, right, targets, tokens = (now - then for now, then in zip(self._sums(logs), self.sums))
        seconds = max(time.perf_counter() - self.start, 1e-9)
        left = (last_step - step) * seconds / max(step - self.step, 1)
        return StepRecord(step, loss / max(targets, 1), right / max(targets, 1), learning_rate, tokens / seconds, left)


class StepLog(keras.callbacks.Callback):
    """Counts steps, ends the training after the last, and reports.

    Time is taken without the first execution, in which TensorFlow compiles, and without checkpoints and evaluation.

    Args:
        first_step: number of updates made before this run.
        last_step: number of updates after which training ends.
        log_every: steps between reports.
        epoch_steps: steps between evaluations.
        reports: objects with the methods of `Terminal`.
    """

    def __init__(self, first_step: int, last_step: int, log_every: int, epoch_steps: int, reports: list):
        super().__init__()
        self.step = first_step
        self._last_step = last_step
        self._log_every = log_every
        self._epoch_steps = epoch_steps
        self._reports = reports
        self._window = None
        self._compiled = False

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch_start = self.step
        self._window = _Window(self.step)
        for report in self._reports:
            report.begin(self.step, min(self.step + self._epoch_steps, self._last_step))

    def on_train_batch_end(self, batch, logs=None):
        before = self.step
        self.step = self._epoch_start + batch + 1
        if self.step >= self._last_step:
            self.model.stop_training = True
        for report in self._reports:
            report.step(self.step, logs)
        if self.step // self._log_every > before // self._log_every:
            rate = float(self.model.optimizer.learning_rate)
            record = self._window.record(self.step, self._last_step, rate, logs)
            for report in self._reports:
                report.record(record)
            self._window = _Window(self.step, logs)
        elif not self._compiled:
            self._window = _Window(self.step, logs)
        self._compiled = True

    def on_epoch_end(self, epoch, logs=None):
        for report in self._reports:
            report.end(self.step, logs)


class Terminal:
    """Writes to the standard output: Keras's progress bar on a terminal, a line for every record elsewhere.

    Args:
        last_step: number of updates after which training ends.
        interactive: whether there is a terminal; by default found out.
    """

    _RATE = "source+target tokens/s"

    def __init__(self, last_step: int, interactive: bool | None = None):
        self._last_step = last_step
        self._interactive = sys.stdout.isatty() if interactive is None else interactive

    def begin(self, step: int, until: int):
        """Before the steps from `step` to `until`."""
        self._first, self._seen, self._compiled_tokens = step, step, None
        if self._interactive:
            print(f"Steps {step + 1} to {until} of {self._last_step}")
            self._bar = keras.utils.Progbar(until - step, stateful_metrics=["loss", "accuracy", self._RATE], interval=0.1)

    def step(self, step: int, logs: dict):
        """After every step, with the means since `begin`."""
        if not self._interactive:
            return
        if self._compiled_tokens is None:
            self._start, self._compiled_tokens = time.perf_counter(), logs["tokens"]
        self._seen = step
        self._bar.update(step - self._first, self._shown(logs), finalize=False)

    def _shown(self, logs):
        seconds = max(time.perf_counter() - self._start, 1e-9)
        rate = (logs["tokens"] - self._compiled_tokens) / seconds
        shown = [(name, logs[name]) for name in ("loss", "accuracy")]
        return shown + ([(self._RATE, rate)] if rate else [])

    def record(self, record: StepRecord):
        """Every `log_every` steps."""
        if not self._interactive:
            _print(
                f"step {record.step}/{self._last_step}: loss {record.loss:.4f}, accuracy {record.accuracy:.4f}, "
                f"learning rate {record.learning_rate:.3g}, {record.tokens_per_second:,.0f} source+target tokens/s, "
                f"{_duration(record.seconds_left)} left"
            )

    def end(self, step: int, logs: dict):
        """After the steps, with the means since `begin` and, as `val_…`, those of the evaluation."""
        if self._interactive:
            self._bar.update(self._seen - self._first, self._shown(logs), finalize=True)
        if "val_loss" in logs:
            _print(f"step {step}/{self._last_step}: dev loss {logs['val_loss']:.4f}, accuracy {logs['val_accuracy']:.4f}")


class TensorBoard:
    """Writes event files: `loss`, `accuracy`, `learning_rate`, `tokens_per_second` in train/; `loss`, `accuracy` in dev/.

    Args:
        directory: the directory to give to `tensorboard --logdir`.
    """

    def __init__(self, directory: Path):
        self._directory = Path(directory)
        self._writers = {}

    def begin(self, step: int, until: int):
        """Nothing is written."""

    def step(self, step: int, logs: dict):
        """Nothing is written."""

    def record(self, record: StepRecord):
        """Writes the means since the last record."""
        names = ("loss", "accuracy", "learning_rate", "tokens_per_second")
        self._write("train", record.step, {name: getattr(record, name) for name in names})

    def end(self, step: int, logs: dict):
        """Writes what the evaluation gave, if there was one, and everything to the disk."""
        if "val_loss" in logs:
            self._write("dev", step, {"loss": logs["val_loss"], "accuracy": logs["val_accuracy"]})
        for writer in self._writers.values():
            writer.flush()

    def _write(self, part, step, values):
        if part not in self._writers:
            self._writers[part] = tf.summary.create_file_writer(str(self._directory / part))
        with self._writers[part].as_default():
            for name, value in values.items():
                tf.summary.scalar(name, value, step=step)


def _print(line):
    print(line, flush=True)


def _duration(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
