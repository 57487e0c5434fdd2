"""The checkpoints with the best scores on the dev set, in `best/step-000123/`."""

import os
from pathlib import Path

from absl import logging

from trainer import atomic_files
from trainer.training.checkpoints import CORRUPT, Checkpoints, read_state
from trainer.training.training_model import TrainingModel


class BestCheckpoints(Checkpoints):
    """The checkpoints of a run with the best scores on the dev set.

    Each checkpoint stores its score and the metric in its state.json, so that no separate index is
    needed.

    Args:
        directory: folder of the checkpoints; created if missing.
        keep: number of checkpoints to keep, at least 1.
        metric: the metric of new checkpoints, "dev_bleu" or "dev_chrf".
    """

    def __init__(self, directory: str | os.PathLike, keep: int = 5, metric: str = "dev_bleu"):
        super().__init__(directory, keep)
        self._metric = metric

    def scores(self) -> dict[int, float]:
        """Returns scores by step, best first. Of equal scores, the earlier step comes first.

        Corrupt checkpoints are ignored with a warning.
        """
        scores = {}
        for step in self.steps():
            try:
                state = read_state(self.path(step))
                scores[step] = float(state[state.get("best_metric", "dev_bleu")])
            except CORRUPT as error:
                logging.warning("Ignoring the corrupt checkpoint %s: %s", self.path(step), error)
        return dict(sorted(scores.items(), key=lambda entry: -entry[1]))

    def best(self) -> Path | None:
        """Returns the folder of the checkpoint with the best score, or None if there is none."""
        return next((self.path(step) for step in self.scores()), None)

    def offer(self, model: TrainingModel, step: int, score: float) -> bool:
        """Writes a checkpoint if it is among the best, and removes surplus checkpoints.

        Args:
            model: the model in training.
            step: number of batches the model was trained on.
            score: the metric of the model on the dev set.

        Returns:
            Whether the checkpoint was written. An existing checkpoint of the same step, from a run
            that was killed and resumed, is kept if its score is at least as high.

        Raises:
            OSError: if the checkpoint can't be written. Existing checkpoints are kept.
        """
        if self.directory.is_dir():
            atomic_files.remove_leftovers(self.directory)
        scores = self.scores()
        if scores.get(step, -1.0) >= score:
            return False
        better = [other for other, value in scores.items() if other != step and value >= score]
        if len(better) >= self.keep:
            return False
        self.save(model, step, best_metric=self._metric, **{self._metric: score})
        return True

    def _surplus(self):
        kept = list(self.scores())[: self.keep]
        return [step for step in self.steps() if step not in kept]
