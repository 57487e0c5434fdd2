"""Callback that writes checkpoints."""

import time

import keras

from trainer.model_dir import ModelDirectory
from trainer.training.checkpoints import Checkpoints
from trainer.training.reports import write_line
from trainer.training.step_counter import Steps


class WriteCheckpoints(keras.callbacks.Callback):
    """Callback that writes model.keras and checkpoints at intervals and when training ends.

    Args:
        steps: the step counter.
        directory: the model directory.
        checkpoints: the checkpoints of the model directory.
        every: number of steps between checkpoints, or None.
        minutes: number of minutes between checkpoints, or None.
    """

    def __init__(
        self,
        steps: Steps,
        directory: ModelDirectory,
        checkpoints: Checkpoints,
        every: int | None = None,
        minutes: float | None = None,
    ):
        super().__init__()
        self._steps = steps
        self._directory = directory
        self._checkpoints = checkpoints
        self._every = every
        self._minutes = minutes
        self._written, self._time = steps.step, time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        # If a signal is received between two callbacks, training ends one step later.
        if self.model.stop_training or self._is_due():
            self.write()

    def _is_due(self):
        if self._every is not None and self._steps.passed(self._every):
            return True
        return self._minutes is not None and time.monotonic() - self._time >= 60 * self._minutes

    def write(self):
        """Writes model.keras and a checkpoint, unless both exist for this step. Step 0 has none.

        Raises:
            OSError: if a file can't be written.
        """
        step = self._steps.step
        has_checkpoint = step == self._written
        if has_checkpoint and (step == 0 or self._directory.has_intact_model()):
            return
        with self._steps.paused():
            # No run resumes from a model.keras without a checkpoint.
            if not self._checkpoints.steps():
                self._checkpoints.save(self.model, step)
            self._directory.save_model(self.model.transformer)
            # Written after model.keras, which is then never older than the last checkpoint.
            if step not in self._checkpoints.steps():
                self._checkpoints.save(self.model, step)
        if has_checkpoint:
            file = self._directory.model_file
            write_line(f"{file} was missing or corrupt and has been rewritten")
            return
        self._written, self._time = step, time.monotonic()
        write_line(f"checkpoint {self._checkpoints.path(step)}")
