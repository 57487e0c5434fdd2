"""When a run writes checkpoints."""

import time

import keras

from trainer.model_dir import ModelDirectory
from trainer.training.checkpoints import Checkpoints
from trainer.training.reports import Report
from trainer.training.step_counter import Steps


class WriteCheckpoints(keras.callbacks.Callback):
    """Writes model.keras and a checkpoint when it is time, after the last step, and where a signal
    ends the run.

    Args:
        steps: where the run is.
        directory: the model directory.
        checkpoints: its checkpoints.
        report: is told of every checkpoint.
        every: steps between checkpoints; None for no such interval.
        minutes: also a checkpoint when so many minutes have passed since the last one; None:
            whenever that was.
    """

    def __init__(
        self,
        steps: Steps,
        directory: ModelDirectory,
        checkpoints: Checkpoints,
        report: Report,
        every: int | None = None,
        minutes: float | None = None,
    ):
        super().__init__()
        self._steps = steps
        self._directory = directory
        self._checkpoints = checkpoints
        self._report = report
        self._every = every
        self._minutes = minutes
        self._written, self._time = steps.step, time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        # A signal that comes between the callbacks ends the run one step later.
        if self.model.stop_training or self._is_time():
            self.write()

    def _is_time(self):
        if self._every is not None and self._steps.passed(self._every):
            return True
        return self._minutes is not None and time.monotonic() - self._time >= 60 * self._minutes

    def write(self):
        """Writes model.keras and a checkpoint, unless the last ones are of this step.

        A model.keras that is missing or damaged is written again.

        Raises:
            CheckpointError: if a file can't be written.
        """
        has_checkpoint = self._steps.step == self._written
        if has_checkpoint and self._directory.has_intact_model():
            return
        with self._steps.paused():
            try:
                self._directory.save_model(self.model.transformer)
            except OSError as error:
                raise self._checkpoints.write_error(self._directory.model_file, error) from error
            if has_checkpoint:
                self._report.note(f"{self._directory.model_file} was damaged or missing: rewritten")
                return
            path = self._checkpoints.save(self.model, self._steps.step)
        self._written, self._time = self._steps.step, time.monotonic()
        self._report.note(f"checkpoint {path}")
