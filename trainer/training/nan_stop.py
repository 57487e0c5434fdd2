"""Stops a run whose loss is not finite, and warns about a very large loss."""

import math
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from trainer import atomic_files
from trainer.training.step_counter import Steps

# A loss this many times that of equal probabilities for all words is reported as divergence.
_LARGE = 5


class NotFiniteError(ValueError):
    """A loss or a gradient is infinite or not a number."""


class StopAtNan(keras.callbacks.Callback):
    """Raises `NotFiniteError` if the loss or the gradient norm is not finite, and saves the batch.

    In float16 only the loss counts, because updates with gradients that are not finite are skipped.
    Logs one warning if the loss becomes very large.

    Args:
        steps: counts the steps. All batches of an execution of several steps are saved.
        directory: folder of the saved batches.
        batch: `batch(number) -> {"inputs": ids [B, S], "targets": ids [B, T]}`, from number 0.
        tokenizer: the model's tokenizer.
        schedule: the learning rate of each update, from 0.
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
        guessing = math.log(self._tokenizer.vocab_size)
        if logs["loss"] > _LARGE * guessing and not self._has_warned:
            self._has_warned = True
            logging.warning(
                "The loss is %.3g at step %d. Equal probabilities for all words give %.3g. "
                "Training diverges: lower --learning_rate or raise --warmup_steps.",
                logs["loss"],
                self._steps.step,
                guessing,
            )

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
        return (
            f"{which}, with the arrays inputs, targets, source_text and target_text. Look at it "
            f"with: python -c \"import numpy; batch = numpy.load('{paths[-1]}'); "
            "print(batch['source_text'], batch['inputs'])\"."
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
