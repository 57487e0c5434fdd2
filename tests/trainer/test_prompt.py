"""Tests of `trainer.translate` with lines typed at a terminal."""

import io
import os
import pty
import subprocess
import sys

import fake_translate
import pytest
from programs import Program
from subprocesses import environment, python_command

from trainer import translate
from trainer.serving import model_versions

LINES = [b"ein hund\n", b"\n", b"\xff ja\n", b"wort " * 13 + b"\n"]


class Terminal(io.BytesIO):
    def isatty(self):
        return True


@pytest.fixture
def type_lines(monkeypatch):
    """Returns a function that types `LINES`, and returns the contents of both output streams."""
    monkeypatch.setattr(model_versions, "load", fake_translate.UpperCase)

    def run(stdout):
        streams = {"stdin": Terminal(b"".join(LINES)), "stdout": stdout, "stderr": Terminal()}
        for name, stream in streams.items():
            text = io.TextIOWrapper(stream, encoding="utf-8", write_through=True)
            monkeypatch.setattr(sys, name, text)
        Program(translate)("--saved_model=any")
        return stdout.getvalue(), streams["stderr"].getvalue()

    return run


def test_typed_lines_are_translated_immediately(type_lines):
    out, err = type_lines(Terminal())
    assert out == b"> EIN HUND\n> \n> \xff JA\n> " + b"WORT " * 13 + b"\n> \n"
    invalid, truncated = err.splitlines()
    assert invalid.startswith(b"warning: expected UTF-8 text.") and b" in line 3," in invalid
    assert truncated == b"warning: line 4 was truncated to the maximum input length of the model."


def test_prompt_is_not_written_to_an_output_file(type_lines):
    out, err = type_lines(io.BytesIO())
    assert out == b"EIN HUND\n\n\xff JA\n" + b"WORT " * 13 + b"\n"
    assert err.startswith(b"> > > warning: ") and err.endswith(b"> \n")


@pytest.mark.slow
def test_lines_typed_at_a_pseudo_terminal():
    ours, theirs = pty.openpty()
    options = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    command = python_command(fake_translate.__file__, "--saved_model=any")
    env = environment(TERM="dumb")
    with subprocess.Popen(command, env=env, close_fds=True, **options) as process:
        os.close(theirs)
        screens = [read_until(ours, b"> ")]
        for line in [*LINES, b"\x04"]:
            os.write(ours, line)
            screens.append(read_until(ours, b"> "))
    os.close(ours)
    assert process.returncode == 0
    assert screens[:3] == [b"> ", b"ein hund\nEIN HUND\n> ", b"\n\n> "]
    assert screens[3].endswith(b"\xff JA\n> ")
    assert b"WORT WORT" in screens[4] and b"warning: line 4 was truncated" in screens[4]
    assert screens[5].strip() == b""


def read_until(terminal, end):
    """Returns the content of the terminal up to a prompt, or until the program ends."""
    screen = b""
    while not screen.endswith(end):
        try:
            screen += os.read(terminal, 1)
        except OSError:  # the program has ended
            break
    return screen.replace(b"\r", b"")
