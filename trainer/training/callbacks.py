"""What happens between the epochs of a run."""

import keras

from trainer.model_dir import ModelDirectory
from trainer.training.checkpoints import Checkpoints


class SaveModel(keras.callbacks.Callback):
    """Writes a checkpoint and model.keras at the end of every epoch.

    Args:
        directory: the model directory.
        checkpoints: its checkpoints.
    """

    def __init__(self, directory: ModelDirectory, checkpoints: Checkpoints):
        super().__init__()
        self._directory = directory
        self._checkpoints = checkpoints

    def on_epoch_end(self, epoch, logs=None):
        try:
            self._directory.save_model(self.model.transformer)
        except OSError as error:
            raise self._checkpoints.unwritable(self._directory.model_file, error) from error
        path = self._checkpoints.save(self.model, int(self.model.optimizer.iterations.numpy()))
        print(f"checkpoint {path}", flush=True)
