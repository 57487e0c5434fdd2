"""Measures a run while it trains."""

import time

import keras

from trainer.training.reports import Report, StepRecord
from trainer.training.step_counter import Steps

# People want to know soon how long it will take.
_FIRST_RECORD_SECONDS = 30.0


class _Window:
    """Sums of the steps since some moment, from the logs of `TrainingModel`, which are means since
    the epoch began.
    """

    def __init__(self, steps, logs=None):
        self._steps = steps
        logs = logs or {"loss": 0.0, "accuracy": 0.0, "tokens": 0.0, "target_tokens": 0.0}
        self._before = self._sums(logs)
        self.restart_clock(logs)

    def restart_clock(self, logs):
        """Measures the rate from here; losses are still those of all steps of the window."""
        self._start = self._clock()
        self._step = self._steps.step
        self._tokens_before = logs["tokens"]

    @staticmethod
    def _sums(logs):
        count = logs["target_tokens"]
        return [logs["loss"] * count, logs["accuracy"] * count, count]

    def _clock(self):
        return time.perf_counter() - self._steps.seconds_paused

    @property
    def seconds(self):
        return max(self._clock() - self._start, 1e-9)

    def record(self, learning_rate, logs):
        loss, right, targets = (now - then for now, then in zip(self._sums(logs), self._before))
        tokens = logs["tokens"] - self._tokens_before
        step, targets, seconds = self._steps.step, max(targets, 1), self.seconds
        left = (self._steps.last - step) * seconds / max(step - self._step, 1)
        return StepRecord(
            step,
            loss / targets,
            right / targets,
            learning_rate,
            tokens / seconds,
            left,
            logs.get("gradient_norm"),
        )


class StepLog(keras.callbacks.Callback):
    """Tells a report of every step, and every so many steps the means since the last time.

    Rates leave out the first execution, in which TensorFlow compiles, checkpoints and evaluation.
    Losses and accuracies include every step. The first record comes after at most half a minute,
    for its estimate of the time left.

    Args:
        steps: where the run is.
        log_every: steps between records.
        evaluate_every: steps at whose multiples epochs end.
        report: receives the lines.
    """

    def __init__(self, steps: Steps, log_every: int, evaluate_every: int, report: Report):
        super().__init__()
        self._steps = steps
        self._log_every = log_every
        self._evaluate_every = evaluate_every
        self._report = report
        self._window = None
        self._compiled = self._recorded = False

    def on_epoch_begin(self, epoch, logs=None):
        step, every = self._steps.step, self._evaluate_every
        self._window = _Window(self._steps)
        self._report.begin(step, min((step // every + 1) * every, self._steps.last))

    def on_train_batch_end(self, batch, logs=None):
        self._report.step(self._steps.step, logs)
        if self._steps.passed(self._log_every) or self._is_first_overdue():
            rate = float(self.model.optimizer.learning_rate)
            self._report.record(self._window.record(rate, logs))
            self._window, self._recorded = _Window(self._steps, logs), True
        elif not self._compiled:
            self._window.restart_clock(logs)
        self._compiled = True

    def _is_first_overdue(self):
        return (
            self._compiled and not self._recorded and self._window.seconds >= _FIRST_RECORD_SECONDS
        )

    def on_epoch_end(self, epoch, logs=None):
        self._report.end(self._steps.step, logs)
