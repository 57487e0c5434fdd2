"""Tests of runs that end before the last step, and of resumed runs."""

import errno
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from comparisons import assert_all_close, assert_all_equal
from saved_runs import assert_model_equals_last_checkpoint

from trainer import atomic_files
from trainer.model_dir import ModelDirectory
from trainer.training.callbacks import Steps
from trainer.training.checkpoints import BestCheckpoints, Checkpoints, read_weights
from trainer.training.dev_set import DevScores, DevTranslator, Sample
from trainer.training.training_model import TrainingModel


def steps(directory):
    return Checkpoints(directory / "checkpoints").steps()


def weights(directory, step):
    return read_weights(Checkpoints(directory / "checkpoints").path(step)).values()


def evaluations(directory):
    return json.loads((directory / "evaluations.json").read_text())


@pytest.fixture
def set_bleu(monkeypatch):
    """Returns `set_bleu(bleu)`, which sets the BLEU of every evaluation. Nothing is translated."""
    samples = [Sample("a source", "a reference", "a translation")]
    return lambda bleu: monkeypatch.setattr(
        DevTranslator, "__call__", lambda *arguments: DevScores(bleu, 50.0 - bleu, samples)
    )


def test_signal_writes_a_checkpoint_and_the_run_resumes(
    finished, finished_run, small_run, rerun, capfd
):
    """An evaluation is due after the interrupted step. The resumed run makes up for it."""
    shutil.rmtree(finished)
    count = Steps.on_train_batch_end

    def count_and_send(self, batch, logs=None):
        if self.step == 7:
            os.kill(os.getpid(), signal.SIGINT)
        count(self, batch, logs)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(SystemExit) as stopped:
        patched.setattr(Steps, "on_train_batch_end", count_and_send)
        rerun(small_run)
    assert stopped.value.code == 130
    assert (
        "trainer.train: interrupted. Rerun the same command to resume from step 8."
        in capfd.readouterr().err
    )
    assert steps(finished) == [3, 6, 8]
    assert [entry["step"] for entry in evaluations(finished)] == [4]
    rerun(small_run)
    assert "Training from step 8 to 9." in capfd.readouterr().out
    assert [entry["step"] for entry in evaluations(finished)] == [4, 8, 9]
    for ours, theirs in zip(evaluations(finished), evaluations(finished_run)):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    assert_all_close(weights(finished, 9), weights(finished_run, 9), rtol=1e-3, atol=1e-5)


def test_signal_during_an_evaluation(tmp_path, small_run, set_bleu, monkeypatch):
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
    set_bleu(12.5)
    small_run(tmp_path, **settings)
    assert [(entry["step"], entry["bleu"]) for entry in evaluations(tmp_path)] == [
        (2, 12.5),
        (4, 12.5),
    ]
    assert steps(tmp_path) == [2, 3, 4]


def test_training_goes_on_if_its_lines_can_not_be_printed(tmp_path, small_run, monkeypatch, caplog):
    """As after `| grep -m1`: the reader of the standard output has gone. Logs can't be written."""
    (tmp_path / "logs").touch()
    small_run(tmp_path, train_steps=1, evaluate_every=2, **small_run.dev)
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as broken:
        monkeypatch.setattr(sys, "stdout", broken)
        small_run(tmp_path, train_steps=4, log_every=1, evaluate_every=2, **small_run.dev)
    assert steps(tmp_path) == [1, 2, 4] and (tmp_path / "model.keras").exists()
    assert [entry["step"] for entry in evaluations(tmp_path)] == [1, 2, 4]
    warnings = [record.message for record in caplog.records if "TensorBoard" in record.message]
    expected = f"Can't write TensorBoard logs to {tmp_path}/logs. Training continues without them: "
    assert len(warnings) == 2 and all(warning.startswith(expected) for warning in warnings)


def test_early_stopping_without_better_bleu(tmp_path, small_run, set_bleu, capfd):
    set_bleu(0.0)
    settings = dict(
        train_steps=100,
        checkpoint_every=3,
        evaluate_every=2,
        early_stopping=2,
        keep_best=2,
        **small_run.dev,
    )
    small_run(tmp_path, **settings)
    out = capfd.readouterr().out
    assert "step 2/100: dev loss" in out and "  translation: " in out
    assert ", dev BLEU = 0.00, dev chrF2 = 50.00\n" in out
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


def test_best_checkpoint_of_a_language_model_has_the_lowest_loss(tmp_path, small_run, monkeypatch):
    losses = iter([3.0, 2.0, 2.5, 2.2])
    evaluate = lambda *_, **__: {"accuracy": 0.5, "loss": next(losses)}
    monkeypatch.setattr(TrainingModel, "evaluate", evaluate)
    settings = {"train_steps": 9, "evaluate_every": 1, "keep_best": 1, "early_stopping": 2}
    small_run(tmp_path, **small_run.settings("text") | settings)
    assert BestCheckpoints(tmp_path / "best").steps() == [2]
    assert len(evaluations(tmp_path)) == 4


def test_not_finite_loss_exits(tmp_path, small_run):
    message = small_run.fails(tmp_path, train_steps=20, learning_rate=1e38)
    failed = int(re.search(r"Expected a finite .* at step (\d+), with", message)[1])
    # The last checkpoint is from before the failed step.
    good = (failed - 1) // 2 * 2
    assert good > 0 and steps(tmp_path)[-1] == good
    assert all(np.isfinite(array).all() for array in weights(tmp_path, good))


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


def test_full_disk_exits_and_the_run_resumes(tmp_path, small_run, monkeypatch):
    """The first checkpoint is written before model.keras, and all others after it."""
    flush = atomic_files._flush
    model, checkpoint = "model.keras", "checkpoints/step-000004"
    ends = ("run.json", 2, []), (model, 2, [2]), (model, 4, [2]), (checkpoint, 4, [2])
    for file, train_steps, saved in ends:

        def flush_other_files(path, name=Path(file).name):
            if name in str(path):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            flush(path)

        monkeypatch.setattr(atomic_files, "_flush", flush_other_files)
        start = f" to resume from step {saved[0]}" if saved else ""
        assert small_run.fails(tmp_path, train_steps=train_steps) == (
            f"trainer.train: Expected a file that can be read or written. Received: {tmp_path}/"
            f"{file} (No space left on device). Free space. Rerun the same command{start}."
        )
        assert steps(tmp_path) == saved and not list(tmp_path.rglob(".writing-*"))
        assert (tmp_path / "model.keras").exists() == (file == checkpoint)
    monkeypatch.setattr(atomic_files, "_flush", flush)
    small_run(tmp_path, train_steps=4)
    assert steps(tmp_path) == [2, 4]
    assert_model_equals_last_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("train_steps", "expected"),
    [(9, {4: None, 8: None, 9: 12.5}), (12, {4: None, 8: None, 9: None, 12: 12.5})],
)
def test_dev_bleu_of_the_last_step_is_added(
    finished, small_run, rerun, set_bleu, train_steps, expected
):
    """Results without BLEU of steps that are not evaluated again are kept."""
    set_bleu(12.5)
    rerun(small_run, keep_best=1, train_steps=train_steps)
    assert {entry["step"]: entry["bleu"] for entry in evaluations(finished)} == expected
    assert BestCheckpoints(finished / "best").steps() == [train_steps]


def test_second_run_in_a_locked_directory_exits(finished, small_run, rerun, capfd):
    """When the other has unlocked it, a finished run changes nothing."""
    other = ModelDirectory.create(finished, lock=True)
    message = rerun(small_run.fails)
    assert (
        "Expected a model directory that no other process is using. Received: "
        f"{finished}, locked by another process." in message
    )
    before = (finished / "model.keras").read_bytes()
    other.unlock()
    rerun(small_run)
    assert "Training is already complete: step 9 of 9." in capfd.readouterr().out
    assert (finished / "model.keras").read_bytes() == before
