"""Callbacks that report training and evaluation on the terminal and in TensorBoard.

They report the logs of training steps whose `report_due` is true, which `StepLog` adds. `StepLog`
must therefore run before them. `DevEvaluator` calls `evaluated`.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import keras
import tensorflow as tf
from absl import logging
from tqdm import tqdm

from trainer.training.dev_bleu import Sample
from trainer.training.dev_results import DevResult
from trainer.training.step_counter import Steps


def write_line(line: str):
    """Writes a line to the standard output, above the progress bar if there is one."""
    tqdm.write(line)
    sys.stdout.flush()


class Terminal(keras.callbacks.Callback):
    """Callback that reports to the standard output.

    On a terminal, it updates a progress bar. Otherwise, it writes a line per report.

    Args:
        steps: the step counter.
        interactive: whether the standard output is a terminal. By default this is detected.
    """

    def __init__(self, steps: Steps, *, interactive: bool | None = None):
        super().__init__()
        self._steps = steps
        self._interactive = sys.stdout.isatty() if interactive is None else interactive

    def on_train_begin(self, logs=None):
        self._bar = tqdm(
            total=self._steps.last,
            initial=self._steps.step,
            disable=not self._interactive,
            file=sys.stdout,
            ncols=shutil.get_terminal_size().columns,
            nrows=20,  # tqdm prints nothing if the height of the terminal is 0.
            bar_format="{percentage:3.0f}%|{bar}| step {n_fmt}/{total_fmt}{postfix}",
        )

    def on_train_batch_end(self, batch, logs=None):
        rate, left = f"{logs['tokens_per_second']:,.0f}", _duration(logs["seconds_left"])
        # Short enough for 80 columns.
        progress = f"loss {logs['loss']:.4f}, {rate} tokens/s, {left} left"
        self._bar.set_postfix_str(progress, refresh=False)
        self._bar.update(self._steps.step - self._steps.before)
        if "compile_seconds" in logs:
            write_line(
                f"step {self._steps.step}/{self._steps.last}: XLA compiled for "
                f"{logs['compile_seconds']:.1f} s, programs so far: {int(logs['programs'])}"
            )
        if logs["report_due"] and not self._interactive:
            norm = f"gradient norm {logs['gradient_norm']:.3g}, " if "gradient_norm" in logs else ""
            write_line(
                f"step {self._steps.step}/{self._steps.last}: loss {logs['loss']:.4f}, accuracy "
                f"{logs['accuracy']:.4f}, learning rate {logs['learning_rate']:.3g}, {norm}{rate} "
                f"source+target tokens/s, {left} left"
            )

    def on_train_end(self, logs=None):
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


class TensorBoard(keras.callbacks.Callback):
    """Callback that writes event files for TensorBoard.

    train/ has `loss`, `accuracy`, `learning_rate`, `tokens_per_second` and `gradient_norm`. dev/
    has `loss`, `accuracy`, `bleu`, `chrf` and the text `translations`.

    Args:
        steps: the step counter.
        directory: directory for `tensorboard --logdir`.
    """

    _NAMES = ("loss", "accuracy", "learning_rate", "tokens_per_second", "gradient_norm")

    def __init__(self, steps: Steps, directory: Path):
        super().__init__()
        self._steps = steps
        self._directory = Path(directory)
        self._writers = {}
        self._has_failed = False

    def on_train_batch_end(self, batch, logs=None):
        if logs["report_due"]:
            values = {name: logs[name] for name in self._NAMES if name in logs}
            self._write("train", self._steps.step, values)

    def on_epoch_end(self, epoch, logs=None):
        self._try(self._flush)

    def evaluated(self, result: DevResult, samples: Sequence[Sample]):
        """Writes the results on the dev set."""
        values = result._asdict()
        self._write("dev", values.pop("step"), values, _table(samples))
        self._try(self._flush)

    def _write(self, part, step, values, translations=None):
        def write():
            if part not in self._writers:
                self._writers[part] = tf.summary.create_file_writer(str(self._directory / part))
            with self._writers[part].as_default(step):
                for name, value in values.items():
                    if value is not None:
                        tf.summary.scalar(name, value)
                if translations:
                    tf.summary.text("translations", translations)

        self._try(write)

    def _flush(self):
        for writer in self._writers.values():
            writer.flush()

    def _try(self, write):
        """Calls a function. If a write fails, training continues without TensorBoard logs."""
        if self._has_failed:
            return
        try:
            write()
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


def _duration(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
