import keras
import pytest

from trainer.model_dir import ModelDirectory
from trainer.training.callbacks import SaveModel
from trainer.training.checkpoints import CheckpointError, Checkpoints


class Transformer:
    def save(self, path):
        path.write_bytes(b"model")


class Unwritable:
    def save(self, path):
        raise OSError(28, "No space left on device")


class Model:
    def __init__(self, transformer):
        self.transformer = transformer
        self.optimizer = keras.optimizers.SGD()


class RecordedCheckpoints(Checkpoints):
    def save(self, model, step):
        self.saved = model
        return self.path(7)


def callback(directory, transformer):
    checkpoints = RecordedCheckpoints(directory / "checkpoints")
    made = SaveModel(ModelDirectory(directory), checkpoints)
    made.set_model(Model(transformer))
    return made, checkpoints


def test_epoch_ends_with_model_and_checkpoint(tmp_path, capsys):
    made, checkpoints = callback(tmp_path, Transformer())
    made.on_epoch_end(0)
    assert (tmp_path / "model.keras").read_bytes() == b"model"
    assert checkpoints.saved is made.model
    assert capsys.readouterr().out == f"checkpoint {tmp_path / 'checkpoints' / 'step-000007'}\n"


def test_full_disk(tmp_path):
    made, _ = callback(tmp_path, Unwritable())
    with pytest.raises(CheckpointError, match="Expected to write .*model.keras. Received: No space left on device. Make room"):
        made.on_epoch_end(0)
