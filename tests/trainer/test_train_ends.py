"""Tests of runs that end before the last step, and of resumed runs."""

import json
import os
import shutil
import signal

import numpy as np
import pytest
from comparisons import assert_all_equal
from saved_runs import assert_model_equals_last_checkpoint

from trainer.data.batching import training_batches
from trainer.model_dir import ModelDirectory
from trainer.training.best_checkpoints import BestCheckpoints
from trainer.training.checkpoints import Checkpoints, read_weights
from trainer.training.dev_bleu import DevBleu, DevTranslator
from trainer.training.step_counter import Steps
from trainer.training.training_run import TrainingRun


def steps(directory):
    return Checkpoints(directory / "checkpoints").steps()


def evaluations(directory):
    return json.loads((directory / "evaluations.json").read_text())


def signal_at(monkeypatch, step, number):
    """Sends a signal to this process during a step."""
    count = Steps.on_train_batch_end

    def count_and_send(self, batch, logs=None):
        if self.step == step - 1:
            os.kill(os.getpid(), number)
        count(self, batch, logs)

    monkeypatch.setattr(Steps, "on_train_batch_end", count_and_send)


SETTINGS = {"checkpoint_every": 3, "evaluate_every": 4, "train_steps": 9}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, small_run):
    directory = tmp_path_factory.mktemp("uninterrupted") / "model"
    small_run(directory, **SETTINGS, **small_run.dev)
    return directory


@pytest.fixture
def finished(uninterrupted, tmp_path):
    """Returns a copy of the run `uninterrupted` that a test may change."""
    return shutil.copytree(uninterrupted, tmp_path / "finished")


@pytest.fixture
def rerun(finished, small_run):
    """Returns `rerun(run, **changes)`: calls `run` with `finished` and its settings."""
    return lambda run, **changes: run(finished, **SETTINGS | small_run.dev | changes)


def test_checkpoints_and_evaluations_have_different_intervals(uninterrupted):
    assert steps(uninterrupted) == [3, 6, 9]
    assert [entry["step"] for entry in evaluations(uninterrupted)] == [4, 8, 9]


@pytest.mark.slow
def test_signal_writes_a_checkpoint_and_the_run_resumes(
    uninterrupted, tmp_path, small_run, monkeypatch, capfd
):
    """An evaluation is due after the interrupted step. The resumed run makes up for it."""
    settings = SETTINGS | small_run.dev
    with monkeypatch.context() as patched, pytest.raises(SystemExit) as stopped:
        signal_at(patched, 8, signal.SIGINT)
        small_run(tmp_path, **settings)
    assert stopped.value.code == 130
    assert (
        "trainer.train: interrupted. Rerun the same command to resume from step 8."
        in capfd.readouterr().err
    )
    assert steps(tmp_path) == [3, 6, 8]
    assert [entry["step"] for entry in evaluations(tmp_path)] == [4]
    small_run(tmp_path, **settings)
    assert "Training from step 8 to 9." in capfd.readouterr().out
    assert [entry["step"] for entry in evaluations(tmp_path)] == [4, 8, 9]
    for ours, theirs in zip(evaluations(tmp_path), evaluations(uninterrupted)):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    for ours, theirs in zip(
        *(
            read_weights(Checkpoints(run / "checkpoints").path(9)).values()
            for run in (tmp_path, uninterrupted)
        ),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_signal_during_an_evaluation(tmp_path, small_run, monkeypatch):
    def interrupted(self, *arguments):
        os.kill(os.getpid(), signal.SIGTERM)

    settings = dict(
        train_steps=4, checkpoint_every=3, evaluate_every=2, dev_bleu=True, **small_run.dev
    )
    with monkeypatch.context() as patched, pytest.raises(SystemExit) as stopped:
        patched.setattr(DevTranslator, "__call__", interrupted)
        small_run(tmp_path, **settings)
    assert stopped.value.code == 143
    assert steps(tmp_path) == [2] and not (tmp_path / "evaluations.json").exists()
    monkeypatch.setattr(DevTranslator, "__call__", lambda *arguments: DevBleu(12.5, []))
    small_run(tmp_path, **settings)
    assert [(entry["step"], entry["bleu"]) for entry in evaluations(tmp_path)] == [
        (2, 12.5),
        (4, 12.5),
    ]
    assert steps(tmp_path) == [2, 3, 4]


@pytest.mark.slow
def test_early_stopping_without_better_bleu(tmp_path, small_run, capfd):
    settings = dict(
        train_steps=100,
        checkpoint_every=3,
        evaluate_every=2,
        learning_rate=1e-9,
        early_stopping=2,
        keep_best=2,
        **small_run.dev,
    )
    small_run(tmp_path, **settings)
    out = capfd.readouterr().out
    assert (
        "step 2/100: dev loss" in out and ", dev BLEU = 0.00\n" in out and "  translation: " in out
    )
    assert (
        "Stopped early: dev BLEU did not improve in the last 2 evaluations.\nBest on dev: step "
        "2, dev BLEU = 0.00.\n" in out
    )
    assert f"  {tmp_path}/best/step-000002: dev BLEU = 0.00\n" in out
    assert f"Trained model: {tmp_path}/model.keras (step 6)" in out
    assert steps(tmp_path) == [3, 6] and BestCheckpoints(tmp_path / "best").steps() == [2, 4]
    small_run(tmp_path, **settings)
    out = capfd.readouterr().out
    assert "Training from step 6 to 100.\nStopped early" in out and "dev loss" not in out


@pytest.mark.parametrize("per_execution", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_not_finite_loss_exits_and_saves_the_batch(tmp_path, small_run, per_execution):
    settings = dict(train_steps=20, learning_rate=1e38, steps_per_execution=per_execution)
    message = small_run.fails(tmp_path, **settings)
    assert "Expected a finite " in message and "with learning rate" in message
    files = sorted((tmp_path / "nan").iterdir())
    assert len(files) == per_execution and str(files[0]) in message
    failed = int(files[0].stem.removeprefix("step-"))
    # The last checkpoint is from before the failed step.
    good = (failed - 1) // 2 * 2
    assert good > 0 and steps(tmp_path)[-1] == good
    assert all(
        np.isfinite(array).all()
        for array in read_weights(Checkpoints(tmp_path / "checkpoints").path(good)).values()
    )
    run = TrainingRun(small_run.config(tmp_path, **settings))
    run.directory.unlock()
    pairs = run._prepared.train_pairs
    expected = next(iter(training_batches(pairs, 30, 256, 1, start_step=failed - 1)))
    with np.load(files[0]) as saved:
        for side in ("inputs", "targets"):
            np.testing.assert_array_equal(saved[side], expected[side])
        assert set(saved["source_text"].tolist()) <= set(small_run.source)


def test_resume_within_an_execution_exits(finished, small_run, rerun):
    changes = {"train_steps": 12, "checkpoint_every": 4, "steps_per_execution": 2}
    message = rerun(small_run.fails, **changes)
    assert (
        "Received: the checkpoint of step 9 and steps_per_execution=2. Use the previous "
        "steps_per_execution, or 1." in message
    )
    assert_model_equals_last_checkpoint(finished)


def test_corrupt_model_of_a_finished_run_is_rewritten(finished, small_run, rerun, capfd):
    directory = ModelDirectory.open(finished)
    expected = directory.load_model().get_weights()
    os.truncate(directory.model_file, 100)
    rerun(small_run)
    assert "model.keras was missing or corrupt and has been rewritten" in capfd.readouterr().out
    assert_all_equal(directory.load_model().get_weights(), expected)
    directory.model_file.unlink()
    rerun(small_run)
    assert directory.has_intact_model()


def test_run_in_a_directory_with_a_model_and_no_checkpoint_exits(finished, small_run, rerun):
    model = (finished / "model.keras").read_bytes()
    shutil.rmtree(finished / "checkpoints")
    assert rerun(small_run.fails) == (
        "trainer.train: Expected a model directory with a checkpoint to resume from. Received: "
        f"{finished}, which has a model and no checkpoint. Start from the model: give "
        f"--init_from={finished} and another --model_dir."
    )
    assert (finished / "model.keras").read_bytes() == model


def test_run_that_ends_between_the_first_checkpoint_and_the_model_resumes(
    tmp_path, small_run, fill_disk, monkeypatch, capfd
):
    fill_disk(ModelDirectory, "save_model")
    small_run.fails(tmp_path, train_steps=2)
    assert steps(tmp_path) == [2] and not (tmp_path / "model.keras").exists()
    monkeypatch.undo()
    small_run(tmp_path, train_steps=2)
    assert "Training is already complete: step 2 of 2." in capfd.readouterr().out
    assert ModelDirectory.open(tmp_path).load_model().count_params() > 0


def test_dev_bleu_of_a_finished_run(finished, small_run, rerun):
    rerun(small_run, keep_best=1)
    results = {entry["step"]: entry["bleu"] for entry in evaluations(finished)}
    assert list(results) == [4, 8, 9] and results[4] is None and results[9] is not None
    assert BestCheckpoints(finished / "best").steps() == [9]


def test_result_without_bleu_of_a_step_that_is_not_evaluated_again_is_kept(
    finished, small_run, rerun
):
    rerun(small_run, keep_best=1, train_steps=12)
    results = {entry["step"]: entry["bleu"] for entry in evaluations(finished)}
    assert list(results) == [4, 8, 9, 12] and results[9] is None and results[12] is not None


def test_train_steps_below_the_last_checkpoint_exits(finished, small_run, rerun):
    before = sorted(path.name for path in finished.rglob("*"))
    assert rerun(small_run.fails, train_steps=2) == (
        "trainer.train: Expected --train_steps of at least 9, the step of the last checkpoint. "
        "Received: 2. Give a larger --train_steps, or another --model_dir."
    )
    assert sorted(path.name for path in finished.rglob("*")) == before


def test_second_run_in_a_locked_directory_exits(finished, small_run, rerun, capfd):
    other = ModelDirectory.create(finished, lock=True)
    message = rerun(small_run.fails)
    assert (
        "Expected a model directory that no other process is using. Received: "
        f"{finished}, locked by process {os.getpid()} on " in message
    )
    other.unlock()
    rerun(small_run)
    assert "Training is already complete: step 9 of 9." in capfd.readouterr().out


def test_failed_start_leaves_no_directory(tmp_path, small_run):
    small_run.fails(tmp_path / "new", train_source=str(tmp_path / "missing"))
    assert not (tmp_path / "new").exists()
