"""Evaluating on the dev set while a run trains."""

from collections.abc import Callable

import keras
import tensorflow as tf

from trainer.training.best_checkpoints import BestCheckpoints
from trainer.training.checkpoints import Checkpoints
from trainer.training.dev_bleu import DevTranslator
from trainer.training.dev_results import Evaluation, Evaluations
from trainer.training.reports import Report
from trainer.training.sharding import shard
from trainer.training.step_counter import Steps


class EvaluateDev(keras.callbacks.Callback):
    """Evaluates on the dev set every so many steps and after the last one; ends the run where it
    doesn't get better.

    Args:
        steps: where the run is.
        every: steps between evaluations, as many as epochs have.
        batches: the dev set, over all devices, of known cardinality; None: there is none, and
            nothing is done.
        evaluations: where the results are noted.
        checkpoints: those of the run, for the error where nothing can be written.
        report: is told the results.
        translate: gives the BLEU; None: it is not measured.
        best: where the best are kept; None: they are not.
        patience: evaluations in a row without a better BLEU that end the run; None: they don't.
        from_chief: `from_chief(value) -> value of the process that translates`, where several
            train.
    """

    def __init__(
        self,
        steps: Steps,
        every: int,
        batches: tf.data.Dataset | None,
        evaluations: Evaluations,
        checkpoints: Checkpoints,
        report: Report,
        translate: DevTranslator | None = None,
        best: BestCheckpoints | None = None,
        patience: int | None = None,
        from_chief: Callable[[float | None], float | None] = lambda value: value,
    ):
        super().__init__()
        self._steps = steps
        self._every = every
        self._batches = batches
        self._evaluations = evaluations
        self._checkpoints = checkpoints
        self._report = report
        self._translate = translate
        self._best = best
        self._patience = patience
        self._from_chief = from_chief

    @property
    def has_converged(self) -> bool:
        """Whether the last evaluations were without a better BLEU."""
        return (
            self._patience is not None and self._evaluations.without_improvement() >= self._patience
        )

    def on_epoch_end(self, epoch, logs=None):
        self.evaluate_if_due()
        # An evaluation that was interrupted comes again only if the run resumes from this very
        # step.
        if self.has_converged or self._steps.interrupted:
            self.model.stop_training = True

    def evaluate_if_due(self):
        """Evaluates, unless this step has been evaluated already or is not one of those that are.

        A signal breaks it off; continuing, the run comes here again.

        Raises:
            CheckpointError: where the results or one of the best can't be written.
        """
        step = self._steps.step
        is_due = (
            step
            and (step % self._every == 0 or step >= self._steps.last)
            and step not in self._evaluations
        )
        if self._batches is None or not is_due or self._steps.interrupted:
            return
        losses = self.model.evaluate(
            shard(self._batches, self.model.distribute_strategy),
            steps=int(self._batches.cardinality()),
            verbose=0,
            return_dict=True,
            callbacks=[_BreakOff(self._steps)],
        )
        dev = self._translate and self._translate(lambda: self._steps.interrupted)
        if self._steps.interrupted:
            return
        evaluation = Evaluation(
            step, losses["loss"], losses["accuracy"], self._from_chief(dev and dev.bleu)
        )
        self._note(evaluation)
        self._report.evaluated(evaluation, dev.samples if dev else [])

    def _note(self, evaluation):
        # First what is the larger: killed between, the run comes here again.
        if self._best is not None:
            self._best.offer(self.model, evaluation.step, evaluation.bleu)
        try:
            self._evaluations.add(evaluation)
        except OSError as error:
            raise self._checkpoints.write_error(self._evaluations.file, error) from error


class _BreakOff(keras.callbacks.Callback):
    """Ends an evaluation when a signal has come."""

    def __init__(self, steps):
        super().__init__()
        self._steps = steps

    def on_test_batch_end(self, batch, logs=None):
        if self._steps.interrupted:
            self.model.stop_evaluating = True
