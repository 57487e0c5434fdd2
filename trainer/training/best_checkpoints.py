"""The checkpoints with the best BLEU on the dev set, in `best/step-000123/`."""

from pathlib import Path

from absl import logging

from trainer import atomic_files
from trainer.training.checkpoints import CORRUPT, Checkpoints, read_state
from trainer.training.training_model import TrainingModel


class BestCheckpoints(Checkpoints):
    """The checkpoints of a run with the best BLEU on the dev set.

    Each stores its BLEU in its state.json; there is no index that could get out of date.

    The arguments are those of `Checkpoints`.
    """

    def scores(self) -> dict[int, float]:
        """Returns dev BLEU by step, the best first, the earlier step first if equal.

        Checkpoints that can't be read are left out.
        """
        scores = {}
        for step in self.steps():
            try:
                scores[step] = float(read_state(self.path(step))["dev_bleu"])
            except CORRUPT as error:
                logging.warning("Ignoring the corrupt checkpoint %s: %s", self.path(step), error)
        return dict(sorted(scores.items(), key=lambda entry: -entry[1]))

    def best(self) -> Path | None:
        """Returns the folder of the checkpoint with the best BLEU, or None without one."""
        return next((self.path(step) for step in self.scores()), None)

    def offer(self, model: TrainingModel, step: int, dev_bleu: float) -> bool:
        """Writes a checkpoint if it is among the best, and removes surplus ones.

        Args:
            model: the trained model.
            step: number of batches it was trained on.
            dev_bleu: its BLEU on the dev set.

        Returns:
            Whether it was written. An existing checkpoint of the same step, from a run that was
            killed and resumed, stays if it is at least as good.

        Raises:
            CheckpointError: if it can't be written. Existing checkpoints stay.
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

    def _surplus(self):
        kept = list(self.scores())[: self.keep]
        return [step for step in self.steps() if step not in kept]

    def _resume_point(self):
        return "its last checkpoint"
