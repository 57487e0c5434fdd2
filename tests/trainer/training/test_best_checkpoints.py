import logging

import pytest
from comparisons import assert_all_equal
from tiny_training import training_model

from trainer.training.checkpoints import BestCheckpoints, read_state, read_weights


@pytest.fixture(scope="module")
def model():
    return training_model()


@pytest.fixture
def offered(tmp_path, model):
    """Returns a function that offers checkpoints, given dev BLEU by step."""

    def offer(bleus, keep=2):
        best = BestCheckpoints(tmp_path, keep)
        return best, [best.offer(model, step, bleu) for step, bleu in bleus.items()]

    return offer


def test_best_checkpoints_are_kept_in_order(tmp_path, model, offered):
    best, written = offered({3: 10.5, 6: 30.25, 9: 20.0, 12: 5.0})
    assert written == [True, True, True, False]
    assert list(best.scores().items()) == [(6, 30.25), (9, 20.0)]
    assert best.steps() == [6, 9] and best.best() == tmp_path / "step-000006"
    assert_all_equal(read_weights(best.best()).values(), model.transformer.variables)


def test_earlier_of_equal_checkpoints_is_kept(offered):
    best, written = offered({3: 0.0, 6: 0.0}, keep=1)
    assert written == [True, False] and best.steps() == [3]


def test_same_step_is_replaced_only_if_better(offered):
    """A run that was killed and resumed repeats steps whose checkpoints exist."""
    offered({3: 10.0, 6: 20.0})
    assert offered({6: 20.0})[1] == offered({6: 15.0})[1] == [False]
    best, written = offered({3: 25.0})
    assert written == [True]
    assert list(best.scores().items()) == [(3, 25.0), (6, 20.0)]


def test_checkpoints_name_their_metric(tmp_path, model):
    """Those of earlier versions have dev BLEU and no name."""
    best = BestCheckpoints(tmp_path, 2)
    best.save(model, 3, dev_bleu=20.0)
    assert BestCheckpoints(tmp_path).scores() == {3: 20.0}
    best = BestCheckpoints(tmp_path / "chrf", 1, "dev_chrf")
    assert [best.offer(model, step, score) for step, score in ((3, 50.0), (6, 40.0))] == [
        True,
        False,
    ]
    assert BestCheckpoints(tmp_path / "chrf").scores() == {3: 50.0}
    assert read_state(best.path(3))["best_metric"] == "dev_chrf"


def test_lower_keep_removes_checkpoints(offered):
    offered({3: 10.0, 6: 20.0})
    best, _ = offered({9: 30.0}, keep=1)
    assert best.steps() == [9]


def test_corrupt_checkpoint_is_ignored(offered, caplog):
    best, _ = offered({3: 10.0, 6: 20.0})
    (best.path(6) / "state.json").write_text("{")
    with caplog.at_level(logging.WARNING, logger="absl"):
        assert best.best() == best.path(3)
    assert "Ignoring the corrupt checkpoint" in caplog.text and "step-000006" in caplog.text


def test_temporary_files_of_a_killed_run_are_removed(tmp_path, offered):
    assert BestCheckpoints(tmp_path / "best").best() is None
    (tmp_path / ".writing-step-000003-x").mkdir()
    offered({3: 10.0})
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-000003"]
