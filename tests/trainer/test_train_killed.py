"""Runs that are killed, and end with the weights of one that never was: bit for bit, with dropout
on.
"""

import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from trainer.training.checkpoints import Checkpoints

PROGRAM = pathlib.Path(__file__).parent / "train_small.py"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(PROGRAM.parents[2]), "TF_CPP_MIN_LOG_LEVEL": "3"}
STEPS = 40
SETTINGS = [
    "--preset=small",
    "--deterministic",
    f"--train_steps={STEPS}",
    "--checkpoint_every=2",
    "--evaluate_every=7",
    "--keep_best=2",
    "--keep_checkpoints=3",
]


def start(directory, files):
    command = [sys.executable, str(PROGRAM), f"--model_dir={directory}", *SETTINGS, *files]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)


def kill_at_a_line(process, line, seconds):
    """Kills it some time after it has said something."""
    for said in process.stdout:
        if line in said:
            time.sleep(seconds)
            process.kill()
    process.wait()


def kill_while_writing(process, directory, name, times):
    """Kills it when something with this name is being written, or removed, aside for the last of
    so many times.
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
    drain.join()


def kill(directory, files, rng, where):
    """Starts a run that is killed soon."""
    with start(directory, files) as process:
        if where == "anywhere":
            kill_at_a_line(process, "Training from step", rng.uniform(0, 3))
        else:
            folder, name, times = {
                "checkpoints": ("checkpoints", "step", rng.randint(1, 6)),
                "best": ("best", "step", 1),
                "model": ("", "model", rng.randint(1, 4)),
            }[where]
            kill_while_writing(process, directory / folder, name, times)
    assert process.returncode in (0, -signal.SIGKILL)
    return process.returncode != 0


def run(directory, files):
    with start(directory, files) as process:
        out = process.stdout.read()
    assert process.returncode == 0
    return out


def saved(directory):
    """All arrays of the checkpoints that are kept, and what the evaluations gave."""
    found = {"evaluations": json.loads((directory / "evaluations.json").read_text())}
    for file in sorted(directory.glob("*/step-*/*.npz")):
        with np.load(file) as arrays:
            found |= {
                f"{file.relative_to(directory)} {name}": arrays[name] for name in arrays.files
            }
    return found


@pytest.mark.slow
def test_killed_run_ends_as_one_that_never_was(synthetic_files, tmp_path):
    rng = random.Random(20180401)
    places = ["best", "checkpoints", "model", "anywhere", "checkpoints", "anywhere", "checkpoints"]
    kills = [kill(tmp_path / "killed", synthetic_files, rng, where) for where in places]
    assert sum(kills) >= 5
    out = run(tmp_path / "killed", synthetic_files)
    assert f" to {STEPS}.\n" in out and "Training from step 0 " not in out
    run(tmp_path / "straight", synthetic_files)
    ours, theirs = saved(tmp_path / "killed"), saved(tmp_path / "straight")
    assert (
        ours.keys() == theirs.keys()
        and f"checkpoints/step-{STEPS:06d}/model.npz source_embedding/embeddings" in ours
    )
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    assert (
        Checkpoints(tmp_path / "killed" / "best").steps()
        == Checkpoints(tmp_path / "straight" / "best").steps()
    )
    assert not list((tmp_path / "killed").rglob(".writing-*"))
