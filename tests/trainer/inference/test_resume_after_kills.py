"""Tests that translation runs that are killed write the same files as an uninterrupted run."""

import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from subprocesses import environment, python_command

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parent / "fake_translate.py"
RESULTS = ("output", "alignments", "tokens")


def write_input(path, count):
    rng = random.Random(41)
    lines = (
        " ".join(rng.choices(["ein", "hund", "", "läuft", "schnell"], k=rng.randint(0, 9)))
        for _ in range(count)
    )
    path.write_bytes("\n".join(lines).encode() + b"\n\xff\n\nlast line without a line end")


def start(folder, name, **variables):
    flags = ["--saved_model=any", f"--input={folder / 'input'}", "--batch_size=5", "--window=11"]
    flags += [f"--{result}={folder / name}.{result}" for result in RESULTS] + ["--nbest=2"]
    env = environment(**{key: str(value) for key, value in variables.items()})
    command = python_command(PROGRAM, *flags)
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


def run(folder, name, **variables):
    """Returns the output on stderr, or None if the process was killed."""
    with start(folder, name, **variables) as process:
        stderr = process.stderr.read()
    assert process.returncode in (0, -signal.SIGKILL), stderr
    return stderr if process.returncode == 0 else None


def read_results(folder, name):
    assert sorted(path.name for path in folder.glob(f"{name}.*")) == sorted(
        f"{name}.{result}" for result in RESULTS
    )
    return [(folder / f"{name}.{result}").read_bytes() for result in RESULTS]


def test_resume_after_kills_inside_lines(tmp_path):
    write_input(tmp_path / "input", 150)
    assert run(tmp_path, "whole").startswith("153 sentences in ")
    expected = read_results(tmp_path, "whole")
    assert [len(content.splitlines()) for content in expected] == [306] * 3
    rng, kills = random.Random(43), 0
    while (stderr := run(tmp_path, "killed", FAKE_OPERATIONS=rng.randint(100, 1500))) is None:
        kills += 1
    assert stderr.startswith("Resuming after line ")
    assert 2 < kills < 30
    assert read_results(tmp_path, "killed") == expected


def test_resume_after_kills_during_the_final_renames(tmp_path):
    write_input(tmp_path / "input", 8)
    whole = run(tmp_path, "whole", FAKE_OPERATIONS=10**6)
    operations = int(whole.split()[-1])
    # The last operations flush and rename one file after the other.
    for remaining in range(1, 8):
        name = f"end-{remaining}"  # as long as "whole", because the log contains the name
        assert run(tmp_path, name, FAKE_OPERATIONS=operations - remaining) is None
        run(tmp_path, name)
        assert read_results(tmp_path, name) == read_results(tmp_path, "whole")


def test_resume_after_kills_at_random_times(tmp_path):
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
    assert read_results(tmp_path, "killed") == read_results(tmp_path, "whole")
