"""Tests of programs whose standard streams are closed, fail, or can't encode a character."""

import contextlib
import errno
import io
import os
import sys

import pytest
from subprocesses import run_python

from trainer import entry_point, streams


class Failing(io.StringIO):
    """A stream without space."""

    encoding = "ascii"

    def write(self, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    flush = lambda self: self.write("")


class Ascii(io.StringIO):
    encoding = "ascii"


def test_log_loses_lines_with_one_warning(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", Failing())
    with streams.as_logs("stdout", "stderr"):
        for _ in range(3):
            print("lost", flush=True)
        assert sys.stdout.encoding == "ascii"
    assert isinstance(sys.stdout, Failing)
    assert capsys.readouterr().err == (
        "warning: can't write to the standard output: No space left on device. The program "
        "continues.\n"
    )


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize("stream", [Failing(), "closed"])
def test_log_without_a_working_stream(monkeypatch, name, stream):
    if stream == "closed":
        stream = io.StringIO()
        stream.close()
    monkeypatch.setattr(sys, name, stream)
    with streams.as_logs("stdout", "stderr"):
        print("lost", file=getattr(sys, name), flush=True)


def test_log_escapes_characters_that_it_can_not_encode(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Ascii())
    with streams.as_logs("stdout"):
        print("größe \udcff")
    assert sys.stdout.getvalue() == "gr\\xf6\\xdfe \\udcff\n"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out"),
            r"out \(No space left on device\)\. Free space, then run the same command again\.",
        ),
        (
            PermissionError(errno.EACCES, os.strerror(errno.EACCES), "out"),
            r"out \(Permission denied\)\.",
        ),
        (OSError("no number"), r"no number\."),
    ],
)
def test_errors_of_files_are_one_line(error, message):
    def fail(values):
        raise error

    expected = f"trainer.any: Expected a file that can be read or written. Received: {message}$"
    with pytest.raises(SystemExit, match=expected):
        entry_point.run("trainer.any", fail, ["any"])


@pytest.mark.parametrize("flush", [False, True])
def test_error_of_the_standard_output_is_one_line(monkeypatch, flush):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(Full())))
    with pytest.raises(SystemExit, match=r"Received: \[Errno 28\] No space left on device. Free"):
        entry_point.run("trainer.any", lambda values: print("text", flush=flush), ["any"])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device")
def test_full_device_raises(monkeypatch):
    """Its buffer is empty after the error, so that the next flush succeeds."""
    with open("/dev/full", "w") as full, contextlib.suppress(OSError):
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit, match="No space left"):
            entry_point.run("trainer.any", lambda values: print("text", flush=True), ["any"])


class Full(io.RawIOBase):
    def writable(self):
        return True

    def write(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self):
        """Does not flush."""


def test_program_goes_on_without_standard_error(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Failing())
    done = []

    def program(values):
        print("warning", file=sys.stderr)
        done.append("result")

    entry_point.run("trainer.any", program, ["any"])
    assert done == ["result"]


# Closes standard streams in a new process, which then opens a file.
CLOSE = """
import os, sys
from trainer import streams
for name in sys.argv[2:]:
    os.close(int(name))
    setattr(sys, ("stdin", "stdout", "stderr")[int(name)], None)
streams.prepare()
with open(sys.argv[1], "w") as file:
    print("log", file=sys.stderr)
    os.write(2, b"a message of a library")
    print(file.fileno(), file=file)
"""


def test_files_do_not_replace_closed_streams(tmp_path):
    run_python("-c", CLOSE, tmp_path / "file", "0", "1", "2")
    assert int((tmp_path / "file").read_text()) > 2
