"""Tests that a run that is killed several times ends with the weights of an uninterrupted run."""

import glob
import json
import random
import signal
import subprocess
import time

import numpy as np
import pytest
import train_small
from subprocesses import environment, python_command

from examples.synthetic_corpus.__main__ import write_split
from trainer.training.checkpoints import Checkpoints

STEPS = 40
SETTINGS = [
    "--preset=small",
    "--vocab_size=1000",
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


def kill(directory, pattern, times, seconds=0.0):
    """Starts a run, and kills it after it has created a number of entries.

    Args:
        directory: the model directory.
        pattern: glob pattern of the entries. Temporary entries are being written or removed.
        times: the number of new entries.
        seconds: time between the creation of the last one and the end of the process.

    Returns:
        Whether the run was killed. If not, it has ended before.
    """
    entries = lambda: set(glob.glob(f"{directory}/{pattern}"))
    with start(directory) as process:
        before, seen = entries(), set()
        while process.poll() is None and len(seen) < times:
            seen |= entries() - before
        time.sleep(seconds)
        process.kill()
        process.stdout.read()
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
    write_split(tmp_path, "train", size=3001)
    write_split(tmp_path, "dev")
    killed, uninterrupted = tmp_path / "killed", tmp_path / "uninterrupted"
    rng = random.Random(20180401)
    kills = [
        kill(killed, "best/.writing-step*", 1),
        kill(killed, "checkpoints/.writing-step*", rng.randint(1, 6)),
        kill(killed, ".writing-model*", rng.randint(1, 4)),
        kill(killed, "logs/train/*", 1, seconds=rng.uniform(0, 3)),
        kill(killed, "checkpoints/.writing-step*", rng.randint(1, 6)),
    ]
    assert sum(kills) >= 4
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
