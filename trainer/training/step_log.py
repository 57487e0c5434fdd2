"""Callback that measures the speed of training and decides when to report."""

import keras

from trainer.training.step_counter import Steps

# The first report is early, because it has an estimate of the remaining time.
_FIRST_REPORT_SECONDS = 30.0


class StepLog(keras.callbacks.Callback):
    """Callback that adds the speed to the logs of every step, and marks the logs to report.

    It adds `tokens_per_second` (source and target tokens), `seconds_left` and `report_due`. Every
    `log_every` steps `report_due` is true: later callbacks report these logs, which also have
    `learning_rate`. The model's metrics are then reset, so the other logs are means over the steps
    since the last report.

    Speeds exclude checkpoints, evaluations, the first execution, and executions whose logs have
    `compile_seconds`.

    Args:
        steps: the step counter.
        log_every: number of steps between reports.
    """

    def __init__(self, steps: Steps, log_every: int):
        super().__init__()
        self._steps = steps
        self._log_every = log_every
        self._has_compiled = self._has_reported = False
        self._speed = 0.0, 0.0  # Tokens per second, and seconds per step.

    def on_epoch_begin(self, epoch, logs=None):
        self._restart(tokens=0.0)

    def on_train_batch_end(self, batch, logs=None):
        if self._has_compiled and "compile_seconds" in logs:
            self._leave_out_last_execution(logs["tokens"])
        seconds = self._steps.clock() - self._start
        if seconds > 1e-9:
            count = max(self._steps.step - self._start_step, 1)
            self._speed = (logs["tokens"] - self._start_tokens) / seconds, seconds / count
        logs["tokens_per_second"], seconds_per_step = self._speed
        logs["seconds_left"] = (self._steps.last - self._steps.step) * seconds_per_step
        logs["report_due"] = self._steps.passed(self._log_every) or self._is_first_due(seconds)
        if logs["report_due"]:
            logs["learning_rate"] = float(self.model.optimizer.learning_rate)
            self._has_reported = True
            self.model.reset_metrics()
            self._restart(tokens=0.0)
        elif not self._has_compiled:
            self._restart(logs["tokens"])
        else:
            self._last, self._last_tokens = self._steps.clock(), logs["tokens"]
        self._has_compiled = True

    def _is_first_due(self, seconds):
        return self._has_compiled and not self._has_reported and seconds >= _FIRST_REPORT_SECONDS

    def _leave_out_last_execution(self, tokens):
        self._start += self._steps.clock() - self._last
        self._start_step += self._steps.step - self._steps.before
        self._start_tokens += tokens - self._last_tokens

    def _restart(self, tokens):
        self._start, self._start_step = self._steps.clock(), self._steps.step
        self._start_tokens = tokens
        self._last, self._last_tokens = self._start, tokens
