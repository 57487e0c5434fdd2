"""Evaluation of a model on the dev set during training."""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from trainer.training.best_checkpoints import BestCheckpoints
from trainer.training.dev_bleu import DevTranslator
from trainer.training.dev_results import DevResult, DevResults
from trainer.training.sharding import shard
from trainer.training.step_counter import Steps


class DevEvaluator:
    """Evaluates a model on the dev set, and detects when its metric no longer improves.

    Args:
        steps: the step counter.
        every: number of steps between evaluations.
        batches: batches of the dev set over all devices, of known cardinality.
        evaluations: storage of the results.
        reports: objects whose method `evaluated(result, samples)` is called with the results.
        translate: a `DevTranslator`, which computes BLEU and chrF, or None.
        best: storage of the best checkpoints, or None.
        patience: number of evaluations without a better score after which training ends, or None.
        from_chief: function that broadcasts a value from the chief to all workers. Only the chief
            translates.
    """

    def __init__(
        self,
        steps: Steps,
        every: int,
        batches: tf.data.Dataset,
        evaluations: DevResults,
        *,
        reports: Sequence = (),
        translate: DevTranslator | None = None,
        best: BestCheckpoints | None = None,
        patience: int | None = None,
        from_chief: Callable[[float | None], float | None] = lambda value: value,
    ):
        self._steps = steps
        self._every = every
        self._batches = batches
        self._evaluations = evaluations
        self._reports = reports
        self._translate = translate
        self._best = best
        self._patience = patience
        self._from_chief = from_chief

    @property
    def has_converged(self) -> bool:
        """Whether the last `patience` evaluations gave no better score."""
        patience = self._patience
        return patience is not None and self._evaluations.without_improvement() >= patience

    def evaluate_if_due(self, model: keras.Model):
        """Evaluates the model if the step is due and has no result. A signal interrupts it.

        Raises:
            OSError: if results or checkpoints can't be written.
        """
        step = self._steps.step
        is_due = step and (step % self._every == 0 or step >= self._steps.last)
        if not is_due or step in self._evaluations or self._steps.interrupted:
            return
        logs = model.evaluate(
            shard(self._batches, model.distribute_strategy),
            steps=int(self._batches.cardinality()),
            verbose=0,
            callbacks=[self._steps],
            return_dict=True,
        )
        dev = self._translate and self._translate(lambda: self._steps.interrupted)
        if self._steps.interrupted:
            return
        scores = (dev.bleu, dev.chrf) if dev else (None, None)
        scores = map(self._from_chief, scores)
        result = DevResult(self._steps.step, logs["loss"], logs["accuracy"], *scores)
        # Write the checkpoint first: a run killed before `add` evaluates again after it resumes.
        if self._best is not None:
            self._best.offer(model, result.step, self._evaluations.score(result))
        self._evaluations.add(result)
        for report in self._reports:
            report.evaluated(result, dev.samples if dev else [])
