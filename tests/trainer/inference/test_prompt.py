"""Tests of `trainer.translate` on a pseudo-terminal."""

import os
import pty
import subprocess
from pathlib import Path

from subprocesses import environment, python_command

PROGRAM = Path(__file__).parent / "fake_translate.py"


def type_lines(lines, tmp_path, output=None):
    """Returns the content of the terminal up to each prompt, after typing each line."""
    ours, theirs = pty.openpty()
    command = python_command(PROGRAM, "--saved_model=any")
    with subprocess.Popen(
        command,
        env=environment(TERM="dumb"),
        stdin=theirs,
        stdout=output or theirs,
        stderr=theirs,
        close_fds=True,
    ) as process:
        os.close(theirs)
        screens = [read_until(ours, b"> ")]
        for line in lines:
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


def test_typed_lines_are_translated_immediately(tmp_path):
    screens = type_lines(
        [b"ein hund\n", b"\n", b"\xff ja\n", b"wort " * 13 + b"\n", b"\x04"], tmp_path
    )
    assert screens[0] == b"> "
    assert screens[1] == b"ein hund\nEIN HUND\n> "
    assert screens[2] == b"\n\n> "
    assert screens[3].endswith(b"\xff JA\n> ")
    assert b"WORT WORT" in screens[4] and b"warning: line 4 was truncated" in screens[4]
    assert screens[5].strip() == b""


def test_prompt_is_not_written_to_an_output_file(tmp_path):
    with open(tmp_path / "answers", "wb") as file:
        screens = type_lines([b"ein hund\n", b"ja\n", b"\x04"], tmp_path, file)
    assert screens[:3] == [b"> ", b"ein hund\n> ", b"ja\n> "]
    assert (tmp_path / "answers").read_bytes() == b"EIN HUND\nJA\n"
