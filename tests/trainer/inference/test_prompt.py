"""A program on a pseudo-terminal."""

import os
import pty
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "fake_translate.py"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(PROGRAM.parents[3]), "TERM": "dumb"}


def talk(said, tmp_path, output=None):
    """The terminal's content after each of several lines was typed and answered."""
    ours, theirs = pty.openpty()
    command = [sys.executable, str(PROGRAM), "--saved_model=any"]
    with subprocess.Popen(
        command,
        env=ENVIRONMENT,
        stdin=theirs,
        stdout=output or theirs,
        stderr=theirs,
        close_fds=True,
    ) as process:
        os.close(theirs)
        screens = [read_until(ours, b"> ")]
        for line in said:
            os.write(ours, line)
            screens.append(read_until(ours, b"> "))
    os.close(ours)
    assert process.returncode == 0
    return screens


def read_until(terminal, end):
    screen = b""
    while not screen.endswith(end):
        try:
            screen += os.read(terminal, 1)
        except OSError:  # the program has ended
            break
    return screen.replace(b"\r", b"")


def test_each_line_is_answered_at_once(tmp_path):
    screens = talk([b"ein hund\n", b"\n", b"\xff ja\n", b"wort " * 13 + b"\n", b"\x04"], tmp_path)
    assert screens[0] == b"> "
    assert screens[1] == b"ein hund\nEIN HUND\n> "
    assert screens[2] == b"\n\n> "
    assert screens[3].endswith(b"\xff JA\n> ")
    assert (
        b"WORT WORT" in screens[4]
        and b"warning: line 4 is longer than the model takes" in screens[4]
    )
    assert screens[5].strip() == b""


def test_prompt_stays_out_of_a_file(tmp_path):
    with open(tmp_path / "answers", "wb") as file:
        screens = talk([b"ein hund\n", b"ja\n", b"\x04"], tmp_path, file)
    assert screens[:3] == [b"> ", b"ein hund\n> ", b"ja\n> "]
    assert (tmp_path / "answers").read_bytes() == b"EIN HUND\nJA\n"
