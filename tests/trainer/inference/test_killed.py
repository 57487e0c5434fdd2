"""Runs that are killed, again and again, and end with the files of one that never was."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "fake_translate.py"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(PROGRAM.parents[3])}
RESULTS = ("output", "alignments", "tokens")


def write_input(path, count):
    rng = random.Random(41)
    lines = (
        " ".join(rng.choices(["ein", "hund", "", "läuft", "schnell"], k=rng.randint(0, 9)))
        for _ in range(count)
    )
    path.write_bytes("\n".join(lines).encode() + b"\n\xff\n\nlast line without its end")


def start(folder, name, **environment):
    command = [
        sys.executable,
        str(PROGRAM),
        "--saved_model=any",
        f"--input={folder / 'input'}",
        "--batch_size=5",
        "--window=11",
    ]
    command += [f"--{result}={folder / name}.{result}" for result in RESULTS] + ["--nbest=2"]
    given = {key: str(value) for key, value in environment.items()}
    return subprocess.Popen(command, env=ENVIRONMENT | given, stderr=subprocess.PIPE, text=True)


def run(folder, name, **environment):
    """What a run says, or None where it was killed."""
    with start(folder, name, **environment) as process:
        said = process.stderr.read()
    assert process.returncode in (0, -signal.SIGKILL), said
    return said if process.returncode == 0 else None


def written(folder, name):
    assert sorted(path.name for path in folder.glob(f"{name}.*")) == sorted(
        f"{name}.{result}" for result in RESULTS
    )
    return [(folder / f"{name}.{result}").read_bytes() for result in RESULTS]


def test_killed_inside_of_lines_of_text_and_of_the_log(tmp_path):
    write_input(tmp_path / "input", 150)
    assert run(tmp_path, "whole").startswith("153 sentences in ")
    expected = written(tmp_path, "whole")
    assert [len(content.splitlines()) for content in expected] == [306] * 3
    rng, kills = random.Random(43), 0
    while (said := run(tmp_path, "killed", FAKE_OPERATIONS=rng.randint(100, 1500))) is None:
        kills += 1
    assert said.startswith("Resuming after line ")
    assert 2 < kills < 30
    assert written(tmp_path, "killed") == expected


@pytest.mark.slow
def test_killed_while_files_get_their_names(tmp_path):
    write_input(tmp_path / "input", 8)
    whole = run(tmp_path, "whole", FAKE_OPERATIONS=10**6)
    operations = int(whole.split()[-1])
    # The last ones wait for the disk and rename, file by file.
    for before_the_end in range(1, 8):
        name = f"end-{before_the_end}"  # as long as the other, which is in the log
        assert run(tmp_path, name, FAKE_OPERATIONS=operations - before_the_end) is None
        run(tmp_path, name)
        assert written(tmp_path, name) == written(tmp_path, "whole")


@pytest.mark.slow
def test_killed_at_any_time(tmp_path):
    write_input(tmp_path / "input", 300)
    run(tmp_path, "whole")
    rng, kills = random.Random(47), 0
    while True:
        with start(tmp_path, "killed", FAKE_SECONDS=0.02) as process:
            time.sleep(rng.uniform(0.3, 1.2))
            process.kill()
            process.stderr.read()
        if process.returncode == 0:
            break
        kills += 1
    assert kills > 1
    assert written(tmp_path, "killed") == written(tmp_path, "whole")
