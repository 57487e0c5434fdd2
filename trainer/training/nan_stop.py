"""Ending a run at the step at which its loss is not a number."""

import math
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from trainer import atomic_files
from trainer.training.step_counter import Steps


class NotFiniteError(ValueError):
    """A loss or a gradient is infinite or not a number."""


class StopAtNan(keras.callbacks.Callback):
    """Raises an error when the loss or the norm of the gradient is infinite or not a number, and
    saves the batch of that step.

    In float16 only the loss counts: updates whose gradients are not finite are left out there.

    Args:
        steps: where the run is. Of an execution of several steps the batches of all are saved.
        directory: where they are saved.
        batch: `batch(number) -> {"inputs": ids [B, S], "targets": ids [B, T]}`, of the batches
            starting at 0.
        tokenizer: has `detokenize`.
        schedule: gives the learning rate of the updates starting at 0.
    """

    def __init__(
        self,
        steps: Steps,
        directory: Path,
        batch: Callable[[int], dict],
        tokenizer,
        schedule: Callable,
    ):
        super().__init__()
        self._steps = steps
        self._directory = directory
        self._batch = batch
        self._tokenizer = tokenizer
        self._schedule = schedule

    def on_train_batch_end(self, batch, logs=None):
        for name in ("loss",) if "loss_scale" in logs else ("loss", "gradient_norm"):
            if not math.isfinite(logs.get(name, 0.0)):
                raise NotFiniteError(self._message(name.replace("_", " "), logs[name]))

    def _message(self, name, value):
        first, last = self._steps.before + 1, self._steps.step
        step = f"step {last}" if first == last else f"one of the steps {first} to {last}"
        rate = float(self._schedule(last - 1))
        return (
            f"Expected a finite {name}. Received: {value} at {step}, with the learning rate "
            f"{rate:.3g}. {self._saved(first, last)} "
            "No checkpoint was written since. Continue from the last one in another --model_dir, "
            "given as --init_from, with a lower "
            "--learning_rate, a longer --warmup_steps or --clip_norm, or without the text at fault."
        )

    def _saved(self, first, last):
        try:
            paths = [self._save(step) for step in range(first, last + 1)]
        except OSError as error:
            return f"Its batch could not be saved in {self._directory} ({error.strerror or error})."
        which = (
            f"Its batch is {paths[0]}"
            if first == last
            else f"Their batches are {paths[0]} to {paths[-1]}"
        )
        look = (
            f"import numpy; batch = numpy.load('{paths[-1]}'); print(batch['source_text'], "
            "batch['inputs'])"
        )
        return (
            f"{which}, with the arrays inputs, targets, source_text and target_text. Look at it "
            "with: "
            f'python -c "{look}".'
        )

    def _save(self, step):
        batch = {side: np.asarray(ids) for side, ids in self._batch(step - 1).items()}
        texts = {
            name: self._text(batch[side])
            for name, side in (("source_text", "inputs"), ("target_text", "targets"))
        }
        path = self._directory / f"step-{step:06d}.npz"
        self._directory.mkdir(parents=True, exist_ok=True)
        with atomic_files.whole_file(path) as aside:
            np.savez(aside, **batch, **texts)
        return path

    def _text(self, ids):
        strings = self._tokenizer.detokenize(tf.constant(ids)).numpy()
        return np.array([string.decode(errors="replace") for string in strings])
