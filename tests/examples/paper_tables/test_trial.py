"""One row with one seed: what is asked of which program, and what a killed process leaves to do."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from examples.paper_tables.trial import TrialError, run_all
from tests.examples.paper_tables.conftest import calls


def test_commands(make_trial, folder):
    trial = make_trial({"use_value_table": False}, dropout=0.25)
    trial.run()
    train, dev, test_a, test_b = (call.split(" ") for call in calls(trial))
    model = f"--model_dir={trial.model_dir}"
    ends = {"source": "en", "target": "de"}
    files = [
        f"--{side}_{end}={folder}/{split}.{ends[end]}"
        for side, split in (("train", "train"), ("dev", "val"))
        for end in ends
    ]
    assert train == [
        "trainer.train",
        "--preset=tiny",
        model,
        *files,
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


def test_nothing_is_done_twice(make_trial):
    trial = make_trial()
    assert not trial.is_done
    trial.run()
    assert trial.is_done
    trial.run()
    assert len(calls(trial)) == 4
    trial.translations("test_a").unlink()
    trial.run()
    assert [call.split(" ")[0] for call in calls(trial)[4:]] == [
        "trainer.train",
        "trainer.evaluate",
    ]


def test_failure(make_trial):
    trial = make_trial()
    (trial.folder / "no trainer.evaluate").touch()
    with pytest.raises(TrialError) as failure:
        trial.run()
    message = f"Expected trainer.evaluate to succeed. Received: exit status 1, and in {trial.folder}/log.txt:\n"
    assert str(failure.value).startswith(message) and str(failure.value).endswith(
        "first line\n  no luck"
    )
    assert not trial.translations("val").exists() and not list(trial.folder.glob(".writing*"))
    (trial.folder / "no trainer.evaluate").unlink()
    trial.run()
    assert trial.is_done


def test_fewer_steps_than_were_trained(make_trial):
    trial = make_trial()
    (trial.model_dir / "checkpoints" / "step-000009").mkdir(parents=True)
    with pytest.raises(
        TrialError,
        match="Expected train_steps of at least 9, which .*/model has reached. Received: 7. Give more, or",
    ):
        trial.run()


def test_seconds_add_up(make_trial):
    trial = make_trial()
    assert trial.seconds == 0.0
    (trial.folder / "time.json").write_text(json.dumps({"seconds": 100.0}))
    trial.run()
    assert 100.0 < trial.seconds < 130.0


def test_two_at_the_same_row(make_trial, capsys):
    """The second waits, and then finds nothing to do."""
    trial = make_trial()
    (trial.folder / "sleep").write_text("0.5")
    first, second = (threading.Thread(target=trial.run) for _ in range(2))
    first.start()
    while not calls(trial):
        time.sleep(0.01)
    second.start()
    first.join()
    second.join()
    assert len(calls(trial)) == 4
    told = [
        f"Training a row, seed 3: {trial.folder}",
        f"Another process is at {trial.folder}: waiting for it.",
    ]
    assert capsys.readouterr().out.splitlines() == told


def test_rows_that_others_are_at_come_last(make_trial, capsys):
    trials = [make_trial({"max_relative_position": k}) for k in (1, 2, 3)]
    (trials[0].folder / "sleep").write_text("0.5")
    other = threading.Thread(target=trials[0].run)
    other.start()
    while not calls(trials[0]):
        time.sleep(0.01)
    assert trials[0].run(wait=False) is False
    assert list(run_all(trials)) == [trials[1], trials[2], trials[0]]
    other.join()
    assert [len(calls(trial)) for trial in trials] == [4, 4, 4]
    told = [
        *(f"Training a row, seed 3: {trial.folder}" for trial in trials),
        f"Another process is at {trials[0].folder}: waiting for it.",
    ]
    assert capsys.readouterr().out.splitlines() == told


def test_a_process_that_outlives_its_parent_keeps_others_away(make_trial):
    """As after SIGKILL, which reaches the parent alone."""
    trial = make_trial()
    lock = trial.folder / "lock"
    parent = f"""
import fcntl, subprocess
with open({str(lock)!r}, "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    child = subprocess.Popen(["sleep", "60"], pass_fds=(file.fileno(),), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(child.pid)
"""
    child = int(
        subprocess.run([sys.executable, "-c", parent], check=True, capture_output=True).stdout
    )
    try:
        with open(lock, "w") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(child, signal.SIGKILL)
