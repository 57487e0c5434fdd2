"""Tests that a run that is killed several times ends with the weights of an uninterrupted run."""

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
import time

import numpy as np
import pytest
import train_small
from subprocesses import environment, python_command

from examples.synthetic_corpus.__main__ import write_split
from trainer.training.checkpoints import Checkpoints

STEPS = 30
SETTINGS = [
    "--preset=small",
    "--vocab_size=100",
    "--deterministic",
    f"--train_steps={STEPS}",
    "--checkpoint_every=2",
    "--evaluate_every=7",
    "--keep_best=2",
    "--keep_checkpoints=3",
]


def start(directory):
    """Starts a run in a subdirectory of the folder with the text files."""
    text = [
        f"--{split}_{side}={directory.parent}/{split}.{language}"
        for split in ("train", "dev")
        for side, language in (("source", "en"), ("target", "de"))
    ]
    command = python_command(train_small.__file__, f"--model_dir={directory}", *SETTINGS, *text)
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)


def kill_after_line(process, text, seconds):
    """Kills a process a number of seconds after it has printed a text."""
    for line in process.stdout:
        if text in line:
            time.sleep(seconds)
            process.kill()
    process.wait()


def kill_while_writing(process, directory, name, times):
    """Kills a process when it writes or removes an entry `name` of a directory for the n-th time.

    Args:
        process: the process.
        directory: the directory.
        name: start of the entry's name.
        times: n.
    """
    drain = threading.Thread(target=process.stdout.read)
    drain.start()
    seen = set()
    while process.poll() is None:
        with contextlib.suppress(FileNotFoundError):
            seen |= {
                entry.name
                for entry in os.scandir(directory)
                if entry.name.startswith(f".writing-{name}")
            }
        if len(seen) >= times:
            process.kill()
            process.wait()
        time.sleep(0.002)  # Writing takes longer.
    drain.join()


def kill(directory, rng, where):
    """Starts a run and kills it. Returns False if the run ended before it was killed."""
    with start(directory) as process:
        if where == "anywhere":
            kill_after_line(process, "Training from step", rng.uniform(0, 3))
        else:
            folder, name, times = {
                "checkpoints": ("checkpoints", "step", rng.randint(1, 4)),
                "best": ("best", "step", 1),
                "model": ("", "model", rng.randint(1, 3)),
            }[where]
            kill_while_writing(process, directory / folder, name, times)
    assert process.returncode in (0, -signal.SIGKILL)
    return process.returncode != 0


def run(directory):
    with start(directory) as process:
        out = process.stdout.read()
    assert process.returncode == 0
    return out


def saved(directory):
    """Returns all arrays of the checkpoints, and the results of the evaluations."""
    found = {"evaluations": json.loads((directory / "evaluations.json").read_text())}
    for file in sorted(directory.glob("*/step-*/*.npz")):
        with np.load(file) as arrays:
            found |= {
                f"{file.relative_to(directory)} {name}": arrays[name] for name in arrays.files
            }
    return found


@pytest.mark.slow
def test_killed_run_equals_an_uninterrupted_run(tmp_path):
    write_split(tmp_path, "train", size=301)
    write_split(tmp_path, "dev", size=11)
    killed, uninterrupted = tmp_path / "killed", tmp_path / "uninterrupted"
    rng = random.Random(20180401)
    places = ["best", "checkpoints", "model", "anywhere"]
    assert sum(kill(killed, rng, where) for where in places) >= 3
    out = run(killed)
    assert f" to {STEPS}.\n" in out and "Training from step 0 " not in out
    run(uninterrupted)
    ours, theirs = saved(killed), saved(uninterrupted)
    assert (
        ours.keys() == theirs.keys()
        and f"checkpoints/step-{STEPS:06d}/model.npz source_embedding/embeddings" in ours
    )
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    assert Checkpoints(killed / "best").steps() == Checkpoints(uninterrupted / "best").steps()
    assert not list(killed.rglob(".writing-*"))
