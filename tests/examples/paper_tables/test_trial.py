"""Tests of a trial: its commands, and resuming after an interruption."""

import fcntl
import threading

import pytest

from examples.paper_tables.trial import TrialError

pytestmark = pytest.mark.slow


def test_trial_runs_training_and_evaluation(make_trial, folder, calls):
    trial = make_trial({"use_value_table": False}, dropout=0.25)
    trial.run()
    train, dev, test_a, test_b = (call.split(" ") for call in calls(trial))
    model = f"--model_dir={trial.model_dir}"
    assert train == [
        "trainer.train",
        "--preset=tiny",
        model,
        f"--train_source={folder}/train.en",
        f"--train_target={folder}/train.de",
        f"--dev_source={folder}/val.en",
        f"--dev_target={folder}/val.de",
        "--train_steps=7",
        "--dropout=0.25",
        "--use_value_table=false",
        "--seed=3",
    ]
    for call, split in ((dev, "val"), (test_a, "test_a"), (test_b, "test_b")):
        assert call[:3] == ["trainer.evaluate", model, "--metrics="]
        assert call[4:] == [f"--source={folder}/{split}.en", f"--target={folder}/{split}.de"]
    assert trial.translations("test_b") == trial.folder / "test_b.step-7.txt"
    assert trial.translations("test_b").read_text() == "TEST_B EN 0 A B C D\nTEST_B EN 1 A B C D\n"
    assert trial.folder.name == "tiny-use_value_table=false-seed=3"


def test_trial_skips_finished_steps(make_trial, calls):
    trial = make_trial()
    assert not trial.is_done
    trial.run()
    assert trial.is_done
    trial.run()
    assert len(calls(trial)) == 4
    trial.translations("test_a").unlink()
    trial.run()
    modules = [call.split(" ")[0] for call in calls(trial)[4:]]
    assert modules == ["trainer.train", "trainer.evaluate"]


def test_trial_reports_and_repeats_a_failed_process(make_trial):
    trial = make_trial()
    (trial.folder / "fail trainer.evaluate").touch()
    with pytest.raises(TrialError) as failure:
        trial.run()
    message = f"trainer.evaluate failed with exit status 1. Last lines of {trial.folder}/log.txt:\n"
    assert str(failure.value).startswith(message)
    assert str(failure.value).endswith("first line\n  last line")
    assert not trial.translations("val").exists()
    assert not list(trial.folder.glob(".writing*"))
    (trial.folder / "fail trainer.evaluate").unlink()
    trial.run()
    assert trial.is_done


def test_trial_rejects_train_steps_below_the_last_checkpoint(make_trial):
    trial = make_trial()
    (trial.model_dir / "checkpoints" / "step-000009").mkdir(parents=True)
    message = "--train_steps must be at least 9, the last step in .*/model, got 7. Increase it"
    with pytest.raises(TrialError, match=message):
        trial.run()


def test_trial_waits_for_the_child_process_of_a_killed_parent(make_trial, calls):
    trial = make_trial()
    with open(trial.folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = threading.Thread(target=trial.run)
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive() and not calls(trial)
    waiting.join()
    assert len(calls(trial)) == 4
