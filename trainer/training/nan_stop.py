"""Callback that stops a run if its loss is not finite, and warns about a very large loss."""

import math
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from trainer import atomic_files
from trainer.training.step_counter import Steps

# A loss above this multiple of the loss of uniform probabilities is reported as divergence.
_DIVERGENCE_FACTOR = 5


class NotFiniteError(ValueError):
    """A loss or a gradient norm is infinite or not a number."""


class StopAtNan(keras.callbacks.Callback):
    """Callback that saves the batch and ends the run if the loss or gradient norm is not finite.

    In float16, only the loss is checked, because updates with gradients that are not finite are
    skipped. One warning is logged if the loss becomes very large.

    Args:
        steps: the step counter. If an execution has several steps, all their batches are saved.
        directory: folder for saved batches.
        batch: `batch(number) -> {"inputs": ids [B, S], "targets": ids [B, T]}`, from number 0.
        tokenizer: the model's tokenizer.
        schedule: the learning rate as a function of the update, from 0.

    Raises:
        NotFiniteError: if the loss or the gradient norm is not finite.
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
        self._has_warned = False

    def on_train_batch_end(self, batch, logs=None):
        for name in ("loss",) if "loss_scale" in logs else ("loss", "gradient_norm"):
            if not math.isfinite(logs.get(name, 0.0)):
                raise NotFiniteError(self._message(name.replace("_", " "), logs[name]))
        uniform_loss = math.log(self._tokenizer.vocab_size)
        if logs["loss"] > _DIVERGENCE_FACTOR * uniform_loss and not self._has_warned:
            self._has_warned = True
            logging.warning(
                "Training diverges: the loss is %.3g at step %d, but uniform probabilities have a "
                "loss of %.3g. Lower --learning_rate or raise --warmup_steps.",
                logs["loss"],
                self._steps.step,
                uniform_loss,
            )

    def _message(self, name, value):
        first, last = self._steps.before + 1, self._steps.step
        step = f"step {last}" if first == last else f"one of the steps {first} to {last}"
        rate = float(self._schedule(last - 1))
        return (
            f"Expected a finite {name}. Received: {value} at {step}, with learning rate "
            f"{rate:.3g}. {self._save_all(first, last)} No checkpoint was written since. Start "
            "from the last one in another --model_dir: give this directory as --init_from, and "
            "lower --learning_rate, raise --warmup_steps, set --clip_norm, or remove the text of "
            "the batch."
        )

    def _save_all(self, first, last):
        """Saves the batches of the steps and returns a sentence about their files."""
        try:
            paths = [self._save(step) for step in range(first, last + 1)]
        except OSError as error:
            return f"Its batch could not be saved in {self._directory} ({error.strerror or error})."
        files = " to ".join(dict.fromkeys([str(paths[0]), str(paths[-1])]))
        return (
            f"Saved the batch: {files}, with the arrays inputs, targets, source_text and "
            'target_text. Print it with: python -c "import numpy; batch = '
            f"numpy.load('{paths[-1]}'); print(batch['source_text'], batch['inputs'])\"."
        )

    def _save(self, step):
        batch = {side: np.asarray(ids) for side, ids in self._batch(step - 1).items()}
        path = self._directory / f"step-{step:06d}.npz"
        self._directory.mkdir(parents=True, exist_ok=True)
        with atomic_files.atomic_file(path) as temporary:
            np.savez(
                temporary,
                **batch,
                source_text=self._text(batch["inputs"]),
                target_text=self._text(batch["targets"]),
            )
        return path

    def _text(self, ids):
        strings = self._tokenizer.detokenize(tf.constant(ids)).numpy()
        return np.array([string.decode(errors="replace") for string in strings])
