"""The checkpoints with the best dev BLEU, in `best/step-000123/`."""

from pathlib import Path

from absl import logging

from trainer import atomic_files
from trainer.training.checkpoints import CORRUPT, Checkpoints, read_state
from trainer.training.training_model import TrainingModel


class BestCheckpoints(Checkpoints):
    """The checkpoints of a run with the best dev BLEU.

    Each checkpoint stores its BLEU in its state.json, so that no separate index is needed.

    The arguments are those of `Checkpoints`.
    """

    def scores(self) -> dict[int, float]:
        """Returns dev BLEU by step, best first. Of equal scores, the earlier step comes first.

        Corrupt checkpoints are ignored with a warning.
        """
        scores = {}
        for step in self.steps():
            try:
                scores[step] = float(read_state(self.path(step))["dev_bleu"])
            except CORRUPT as error:
                logging.warning("Ignoring the corrupt checkpoint %s: %s", self.path(step), error)
        return dict(sorted(scores.items(), key=lambda entry: -entry[1]))

    def best(self) -> Path | None:
        """Returns the folder of the checkpoint with the best BLEU, or None if there is none."""
        return next((self.path(step) for step in self.scores()), None)

    def offer(self, model: TrainingModel, step: int, dev_bleu: float) -> bool:
        """Writes a checkpoint if it is among the best, and removes surplus checkpoints.

        Args:
            model: the model in training.
            step: number of batches the model was trained on.
            dev_bleu: BLEU of the model on the dev set.

        Returns:
            Whether the checkpoint was written. An existing checkpoint of the same step, from a run
            that was killed and resumed, is kept if its BLEU is at least as high.

        Raises:
            OSError: if the checkpoint can't be written. Existing checkpoints are kept.
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
