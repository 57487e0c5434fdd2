"""The checkpoints with the best BLEU on the dev set, in `best/step-000123/`."""

import os
from pathlib import Path

from absl import logging

from trainer import atomic_files
from trainer.training.checkpoints import DAMAGED, Checkpoints, read_state
from trainer.training.training_model import TrainingModel


class BestCheckpoints(Checkpoints):
    """The checkpoints of a run with the best BLEU on the dev set.

    Each says its BLEU in its own state.json, so that there is no index that a kill could part from them.

    Args:
        directory: where they lie; made where missing.
        keep: how many are kept.
    """

    def __init__(self, directory: str | os.PathLike, keep: int = 1):
        super().__init__(directory, keep)

    def scores(self) -> dict[int, float]:
        """The dev BLEU by step, the best first; of equal ones the earlier step first. Damaged checkpoints are left out."""
        scores = {}
        for step in self.steps():
            try:
                scores[step] = float(read_state(self.path(step))["dev_bleu"])
            except DAMAGED as error:
                logging.warning("Leaving out the damaged checkpoint %s: %s", self.path(step), error)
        return dict(sorted(scores.items(), key=lambda entry: -entry[1]))

    def best(self) -> Path | None:
        """Where the checkpoint with the best BLEU lies; None where there is none."""
        return next((self.path(step) for step in self.scores()), None)

    def offer(self, model: TrainingModel, step: int, dev_bleu: float) -> bool:
        """Writes a checkpoint if it is among the best, then removes those that are too many.

        Args:
            model: what is trained.
            step: the number of batches that it has seen.
            dev_bleu: its BLEU on the dev set.

        Returns:
            Whether it was written. One of the same step, left by a run that was killed and has come here again, stays if it is at
            least as good.

        Raises:
            CheckpointError: where it can't be written; those that were there stay.
        """
        if self.directory.is_dir():
            atomic_files.remove_leftovers(self.directory)
        scores = self.scores()
        if scores.get(step, -1.0) >= dev_bleu:
            return False
        better = [other for other, score in scores.items() if other != step and score >= dev_bleu]
        if len(better) >= self.keep:
            return False
        self.save(model, step, dev_bleu=dev_bleu)
        return True

    def _too_many(self):
        kept = list(self.scores())[: self.keep]
        return [step for step in self.steps() if step not in kept]

    def _where_it_goes_on(self):
        return "its last checkpoint"
