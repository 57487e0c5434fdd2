"""Callback that stops a run that diverges, and warns about a very large loss."""

import math
from collections.abc import Callable

import keras
from absl import logging

from trainer.training.gradient_updates import LossScale
from trainer.training.step_counter import Steps

# A loss above this multiple of the loss of uniform probabilities is reported as divergence.
_DIVERGENCE_FACTOR = 5
# Consecutive updates that the smallest loss scale may skip. One bad batch must not end a run.
_MOST_SKIPPED = 10


class NotFiniteError(ValueError):
    """A loss or a gradient norm is infinite or not a number."""


class StopAtNan(keras.callbacks.Callback):
    """Callback that ends the run if the loss or gradient norm is not finite.

    In float16, updates with gradients that are not finite are skipped. The run ends if several of
    them follow each other at the smallest loss scale. One warning is logged if the loss becomes
    very large.

    Args:
        steps: the step counter.
        vocab_size: size of the model's vocabulary.
        schedule: the learning rate as a function of the update, from 0.

    Raises:
        NotFiniteError: if the loss or the gradient norm is not finite.
    """

    def __init__(self, steps: Steps, vocab_size: int, schedule: Callable):
        super().__init__()
        self._steps = steps
        self._uniform_loss = math.log(vocab_size)
        self._schedule = schedule
        self._skipped = 0
        self._has_warned = False

    def on_train_batch_end(self, batch, logs=None):
        for name in ("loss",) if "loss_scale" in logs else ("loss", "gradient_norm"):
            if not math.isfinite(logs.get(name, 0.0)):
                raise NotFiniteError(self._message(name.replace("_", " "), logs[name]))
        self._count_skipped(logs)
        if logs["loss"] > _DIVERGENCE_FACTOR * self._uniform_loss and not self._has_warned:
            self._has_warned = True
            logging.warning(
                "Training diverges: the loss is %.3g at step %d, but uniform probabilities have a "
                "loss of %.3g. Lower --learning_rate or raise --warmup_steps.",
                logs["loss"],
                self._steps.step,
                self._uniform_loss,
            )

    def _count_skipped(self, logs):
        """Counts consecutive updates that were skipped at the smallest loss scale."""
        at_smallest = logs.get("loss_scale", math.inf) <= LossScale.smallest
        is_skipped = at_smallest and not math.isfinite(logs["gradient_norm"])
        self._skipped = self._skipped + 1 if is_skipped else 0
        if self._skipped >= _MOST_SKIPPED:
            name = f"gradient norm at the smallest loss scale, {LossScale.smallest:.3g}"
            message = self._message(name, logs["gradient_norm"])
            raise NotFiniteError(f"{message} Or train without --precision=float16.")

    def _message(self, name, value):
        first, last = self._steps.before + 1, self._steps.step
        step = f"step {last}" if first == last else f"one of the steps {first} to {last}"
        rate = float(self._schedule(last - 1))
        return (
            f"Expected a finite {name}. Received: {value} at {step}, with learning rate "
            f"{rate:.3g}. No checkpoint was written since. Start from the last one in another "
            "--model_dir: give this directory as --init_from, and lower --learning_rate, raise "
            "--warmup_steps, or set --clip_norm."
        )
