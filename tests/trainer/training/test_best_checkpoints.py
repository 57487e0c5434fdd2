import logging

import keras
import numpy as np
import pytest
from comparisons import assert_all_equal
from small_transformers import small_config

from t2t_relpos.models import Transformer
from trainer.training.best_checkpoints import BestCheckpoints
from trainer.training.checkpoints import read_weights
from trainer.training.training_model import TrainingModel


@pytest.fixture(scope="module")
def model():
    made = TrainingModel(Transformer(small_config()))
    made.compile(keras.optimizers.SGD(0.1))
    return made


def offered(directory, model, bleus, keep=2):
    best = BestCheckpoints(directory, keep)
    return best, [best.offer(model, step, bleu) for step, bleu in bleus.items()]


def test_best_checkpoints_are_kept_in_order(tmp_path, model):
    best, written = offered(tmp_path, model, {3: 10.5, 6: 30.25, 9: 20.0, 12: 5.0})
    assert written == [True, True, True, False]
    assert list(best.scores().items()) == [(6, 30.25), (9, 20.0)]
    assert best.steps() == [6, 9] and best.best() == tmp_path / "step-000006"
    assert_all_equal(read_weights(best.best()).values(), model.transformer.variables)


def test_earlier_of_equal_checkpoints_is_kept(tmp_path, model):
    best, written = offered(tmp_path, model, {3: 0.0, 6: 0.0}, keep=1)
    assert written == [True, False] and best.steps() == [3]


def test_same_step_is_replaced_only_if_better(tmp_path, model):
    """A run that was killed and resumed repeats steps whose checkpoints exist."""
    best, _ = offered(tmp_path, model, {3: 10.0, 6: 20.0})
    assert not best.offer(model, 6, 20.0)
    assert not best.offer(model, 6, 15.0)
    assert best.offer(model, 3, 25.0)
    assert list(best.scores().items()) == [(3, 25.0), (6, 20.0)]


def test_lower_keep_removes_checkpoints(tmp_path, model):
    offered(tmp_path, model, {3: 10.0, 6: 20.0})
    best, _ = offered(tmp_path, model, {9: 30.0}, keep=1)
    assert best.steps() == [9]


def test_corrupt_checkpoint_is_ignored(tmp_path, model, caplog):
    best, _ = offered(tmp_path, model, {3: 10.0, 6: 20.0})
    (best.path(6) / "state.json").write_text("{")
    with caplog.at_level(logging.WARNING, logger="absl"):
        assert best.best() == best.path(3)
    assert "Ignoring the corrupt checkpoint" in caplog.text and "step-000006" in caplog.text


def test_temporary_files_of_a_killed_run_are_removed(tmp_path, model):
    (tmp_path / ".writing-step-000003-x").mkdir()
    offered(tmp_path, model, {3: 10.0})
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-000003"]


def test_best_without_checkpoints_returns_none(tmp_path):
    assert BestCheckpoints(tmp_path / "best").best() is None


def test_full_disk_raises(tmp_path, model, fill_disk):
    best, _ = offered(tmp_path, model, {3: 10.0})
    fill_disk(np, "savez")
    with pytest.raises(OSError, match="No space left on device") as raised:
        best.offer(model, 6, 20.0)
    assert raised.value.filename == str(best.path(6)) and best.steps() == [3]
