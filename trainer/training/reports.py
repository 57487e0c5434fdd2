"""Where a run reports what it does: on the terminal and in TensorBoard."""

import sys
import time
from pathlib import Path
from typing import NamedTuple

import keras
import tensorflow as tf
from absl import logging

from trainer.training.dev_bleu import Sample
from trainer.training.dev_results import Evaluation


class StepRecord(NamedTuple):
    """Means over the steps since the last record.

    `tokens_per_second` counts source and target tokens.
    """

    step: int
    loss: float
    accuracy: float
    learning_rate: float
    tokens_per_second: float
    seconds_left: float
    gradient_norm: float | None = None


class Report:
    """Is told what happens in a run; says nothing of it."""

    def begin(self, step: int, until: int):
        """Before the steps from `step` to `until`."""

    def step(self, step: int, logs: dict):
        """After every step, with the means since `begin`."""

    def record(self, record: StepRecord):
        """Every `log_every` steps."""

    def end(self, step: int, logs: dict):
        """After the steps, with the means since `begin`."""

    def evaluated(self, evaluation: Evaluation, samples: list[Sample]):
        """After an evaluation on the dev set, with some translations where it was translated."""

    def note(self, line: str):
        """Anything else."""


class Reports(Report):
    """Tells several reports."""

    def __init__(self, *reports: Report):
        self._reports = reports

    def begin(self, *args):
        for report in self._reports:
            report.begin(*args)

    def step(self, *args):
        for report in self._reports:
            report.step(*args)

    def record(self, *args):
        for report in self._reports:
            report.record(*args)

    def end(self, *args):
        for report in self._reports:
            report.end(*args)

    def evaluated(self, *args):
        for report in self._reports:
            report.evaluated(*args)

    def note(self, *args):
        for report in self._reports:
            report.note(*args)


class Terminal(Report):
    """Writes to the standard output: Keras's progress bar on a terminal, a line for every record
    elsewhere.

    Args:
        last_step: number of updates after which training ends.
        interactive: whether there is a terminal; by default found out.
    """

    _RATE, _HOURS = "source+target tokens/s", "hours left in all"

    def __init__(self, last_step: int, interactive: bool | None = None):
        self._last_step = last_step
        self._interactive = sys.stdout.isatty() if interactive is None else interactive
        self._hours_left = None

    def begin(self, step: int, until: int):
        self._first, self._seen, self._compiled_tokens = step, step, None
        if self._interactive:
            _print(f"Steps {step + 1} to {until} of {self._last_step}")
            names = ["loss", "accuracy", self._RATE, self._HOURS]
            self._bar = keras.utils.Progbar(until - step, stateful_metrics=names, interval=0.1)

    def step(self, step: int, logs: dict):
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
        shown += [(self._RATE, rate)] if rate else []
        return shown + ([] if self._hours_left is None else [(self._HOURS, self._hours_left)])

    def record(self, record: StepRecord):
        self._hours_left = record.seconds_left / 3600
        if self._interactive:
            return
        norm = "" if record.gradient_norm is None else f"gradient norm {record.gradient_norm:.3g}, "
        _print(
            f"step {record.step}/{self._last_step}: loss {record.loss:.4f}, accuracy "
            f"{record.accuracy:.4f}, "
            f"learning rate {record.learning_rate:.3g}, {norm}{record.tokens_per_second:,.0f} "
            "source+target tokens/s, "
            f"{_duration(record.seconds_left)} left"
        )

    def end(self, step: int, logs: dict):
        if self._interactive:
            self._bar.update(self._seen - self._first, self._shown(logs), finalize=True)

    def evaluated(self, evaluation: Evaluation, samples: list[Sample]):
        for sample in samples:
            _print(
                f"  source:      {sample.source}\n  reference:   {sample.reference}\n  "
                f"translation: {sample.translation}\n"
            )
        bleu = "" if evaluation.bleu is None else f", dev BLEU = {evaluation.bleu:.2f}"
        _print(
            f"step {evaluation.step}/{self._last_step}: dev loss {evaluation.loss:.4f}, accuracy "
            f"{evaluation.accuracy:.4f}{bleu}"
        )

    def note(self, line: str):
        # The progress bar's line continues.
        _print(f"\n{line}" if self._interactive else line)


class TensorBoard(Report):
    """Writes event files: `loss`, `accuracy`, `learning_rate`, `tokens_per_second`,
    `gradient_norm` in train/; `loss`, `accuracy`,
    `bleu` and the text `translations` in dev/.

    Args:
        directory: the directory to give to `tensorboard --logdir`.
    """

    def __init__(self, directory: Path):
        self._directory = Path(directory)
        self._writers = {}
        self._has_failed = False

    def record(self, record: StepRecord):
        names = ("loss", "accuracy", "learning_rate", "tokens_per_second", "gradient_norm")
        self._write("train", record.step, {name: getattr(record, name) for name in names})

    def end(self, step: int, logs: dict):
        self._flush()

    def evaluated(self, evaluation: Evaluation, samples: list[Sample]):
        values = {name: getattr(evaluation, name) for name in ("loss", "accuracy", "bleu")}
        self._write(
            "dev", evaluation.step, values, {"translations": _table(samples)} if samples else {}
        )
        self._flush()

    def _write(self, part, step, values, texts=None):
        def write():
            if part not in self._writers:
                self._writers[part] = tf.summary.create_file_writer(str(self._directory / part))
            with self._writers[part].as_default():
                for name, value in values.items():
                    if value is not None:
                        tf.summary.scalar(name, value, step=step)
                for name, text in (texts or {}).items():
                    tf.summary.text(name, text, step=step)

        self._try(write)

    def _flush(self):
        for writer in self._writers.values():
            self._try(writer.flush)

    def _try(self, write):
        """Curves are worth less than the run: without room for them it continues."""
        if self._has_failed:
            return
        try:
            write()
        except tf.errors.OpError as error:
            self._has_failed = True
            logging.warning(
                "No curves are written any more to %s: %s",
                self._directory,
                error.message.splitlines()[0],
            )


def _table(samples):
    """The samples as a table in Markdown."""
    rows = [" | ".join(text.replace("|", "\\|") for text in sample) for sample in samples]
    return "\n".join(["source | reference | translation", "--- | --- | ---", *rows])


def _print(line):
    print(line, flush=True)


def _duration(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes:02d} min"
        if hours
        else f"{minutes} min {seconds:02d} s"
        if minutes
        else f"{seconds} s"
    )
