"""Reports of training and evaluation on the terminal and in TensorBoard.

`StepLog` is the callback. It measures the speed of training and calls `begin`, `trained` and `end`
of each report. `dev_set.DevEvaluator` calls `evaluated`.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import keras
import tensorflow as tf
from absl import logging
from tqdm import tqdm

from ..streams import write_line
from .callbacks import Steps
from .dev_set import DevResult, Sample

# The first report is early, because it has an estimate of the remaining time.
_FIRST_REPORT_SECONDS = 30.0


class StepLog(keras.callbacks.Callback):
    """Callback that measures the speed of training and reports its steps.

    Every report gets the logs of every step and whether the step is due. Every `log_every` steps it
    is: the logs then also have `learning_rate`, and the model's metrics are reset, so that the
    other logs are means over the steps since the last one that was due.

    Once a step has been measured, the logs also have `tokens_per_second` (source and target tokens)
    and `seconds_left`. Measurements exclude checkpoints, evaluations, the first step, and steps
    whose logs have `compile_seconds`.
    """

    def __init__(self, steps: Steps, log_every: int, reports: Sequence = ()):
        super().__init__()
        self._steps = steps
        self._log_every = log_every
        self._reports = reports
        self._has_traced = self._has_reported = False
        self._speed = None  # Tokens per second, and seconds per step.

    def on_train_begin(self, logs=None):
        for report in self._reports:
            report.begin()

    def on_epoch_begin(self, epoch, logs=None):
        self._start_measuring()

    def on_train_batch_end(self, batch, logs=None):
        now, tokens = self._steps.clock(), logs["tokens"]
        if self._has_traced and "compile_seconds" not in logs:
            self._seconds += now - self._last
            self._tokens += tokens - self._last_tokens
            self._count += 1
        self._last, self._last_tokens, self._has_traced = now, tokens, True
        if self._seconds > 1e-9:
            self._speed = self._tokens / self._seconds, self._seconds / self._count
        reported = logs | self._estimates()
        is_early = not self._has_reported and self._seconds >= _FIRST_REPORT_SECONDS
        is_due = self._steps.step % self._log_every == 0 or is_early
        if is_due:
            reported["learning_rate"] = float(self.model.optimizer.learning_rate)
            self._has_reported = True
            self.model.reset_metrics()
            self._start_measuring()
        for report in self._reports:
            report.trained(reported, is_due=is_due)

    def on_train_end(self, logs=None):
        for report in self._reports:
            report.end()

    def _start_measuring(self):
        """Forgets the measured steps. Called when the model's metrics are reset."""
        self._seconds, self._tokens, self._count = 0.0, 0.0, 0
        self._last, self._last_tokens = self._steps.clock(), 0.0

    def _estimates(self):
        if self._speed is None:
            return {}
        tokens_per_second, seconds_per_step = self._speed
        left = (self._steps.last - self._steps.step) * seconds_per_step
        return {"tokens_per_second": tokens_per_second, "seconds_left": left}


class Terminal:
    """Reports to the standard output: a progress bar on a terminal, otherwise a line per report."""

    def __init__(self, steps: Steps, *, interactive: bool | None = None):
        self._steps = steps
        self._interactive = sys.stdout.isatty() if interactive is None else interactive

    def begin(self):
        """Starts the progress bar."""
        self._bar = tqdm(
            total=self._steps.last,
            initial=self._steps.step,
            disable=not self._interactive,
            file=sys.stdout,
            ncols=shutil.get_terminal_size().columns,
            nrows=20,  # tqdm prints nothing if the height of the terminal is 0.
            bar_format="{percentage:3.0f}%|{bar}| step {n_fmt}/{total_fmt}{postfix}",
        )

    def trained(self, logs: dict, *, is_due: bool):
        """Reports a training step."""
        # Short enough for 80 columns.
        progress = f"loss {logs['loss']:.4f}{_format_estimates(logs, 'tokens/s')}"
        self._bar.set_postfix_str(progress, refresh=False)
        self._bar.update()
        if "compile_seconds" in logs:
            write_line(
                f"step {self._steps.step}/{self._steps.last}: XLA compiled for "
                f"{logs['compile_seconds']:.1f} s, programs so far: {int(logs['programs'])}"
            )
        if is_due and not self._interactive:
            # A language model has no source.
            is_target_only = "tokens" in logs and logs["tokens"] == logs["target_tokens"]
            unit = "tokens/s" if is_target_only else "source+target tokens/s"
            norm = f", gradient norm {logs['gradient_norm']:.3g}" if "gradient_norm" in logs else ""
            write_line(
                f"step {self._steps.step}/{self._steps.last}: loss {logs['loss']:.4f}, accuracy "
                f"{logs['accuracy']:.4f}, learning rate {logs['learning_rate']:.3g}{norm}"
                f"{_format_estimates(logs, unit)}"
            )

    def end(self):
        """Closes the progress bar."""
        self._bar.close()

    def evaluated(self, result: DevResult, samples: Sequence[Sample]):
        """Reports the results on the dev set."""
        for sample in samples:
            write_line(
                f"  source:      {sample.source}\n  reference:   {sample.reference}\n  "
                f"translation: {sample.translation}\n"
            )
        values = [f"dev loss {result.loss:.4f}", f"accuracy {result.accuracy:.4f}"]
        for score, name in ((result.bleu, "dev BLEU"), (result.chrf, "dev chrF2")):
            if score is not None:
                values.append(f"{name} = {score:.2f}")
        write_line(f"step {result.step}/{self._steps.last}: {', '.join(values)}")


class TensorBoard:
    """Writes event files for TensorBoard.

    train/ has `loss`, `accuracy`, `learning_rate`, `tokens_per_second` and `gradient_norm`. dev/
    has `loss`, `accuracy`, `bleu`, `chrf` and the text `translations`.
    """

    _NAMES = ("loss", "accuracy", "learning_rate", "tokens_per_second", "gradient_norm")

    def __init__(self, steps: Steps, directory: Path):
        self._steps = steps
        self._directory = Path(directory)
        self._writers = {}
        self._has_failed = False

    def begin(self):
        """Does nothing. Files are created with the first value."""

    def trained(self, logs: dict, *, is_due: bool):
        """Writes the values of a training step that is due."""
        if is_due:
            values = {name: logs[name] for name in self._NAMES if name in logs}
            self._write("train", self._steps.step, values)

    def end(self):
        """Does nothing."""

    def evaluated(self, result: DevResult, samples: Sequence[Sample]):
        """Writes the results on the dev set."""
        values = result._asdict()
        self._write("dev", values.pop("step"), values, _table(samples))

    def _write(self, part, step, values, translations=None):
        """Writes values. If that fails, training continues without TensorBoard logs."""
        if self._has_failed:
            return
        try:
            if part not in self._writers:
                self._writers[part] = tf.summary.create_file_writer(str(self._directory / part))
            with self._writers[part].as_default(step):
                for name, value in values.items():
                    if value is not None:
                        tf.summary.scalar(name, value)
                if translations:
                    tf.summary.text("translations", translations)
            self._writers[part].flush()
        except tf.errors.OpError as error:
            self._has_failed = True
            logging.warning(
                "Can't write TensorBoard logs to %s. Training continues without them: %s",
                self._directory,
                error.message.splitlines()[0],
            )


def _table(samples):
    """Returns the samples as a Markdown table, or None without samples."""
    if not samples:
        return None
    rows = [" | ".join(text.replace("|", "\\|") for text in sample) for sample in samples]
    return "\n".join(["source | reference | translation", "--- | --- | ---", *rows])


def _format_estimates(logs, unit):
    """Returns the speed and the remaining time as the end of a line, empty until they are known."""
    if "seconds_left" not in logs:
        return ""
    return f", {logs['tokens_per_second']:,.0f} {unit}, {_duration(logs['seconds_left'])} left"


def _duration(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
