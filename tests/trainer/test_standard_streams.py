"""Tests of programs whose standard streams are closed, fail, or can't encode a character."""

import contextlib
import errno
import io
import os
import subprocess
import sys

import pytest
from programs import Program
from subprocesses import run_python

from trainer import atomic_files, entry_point, evaluate, streams, train
from trainer.serving import model_versions
from trainer.serving.translator import Translation
from trainer.training import dry_run


class Failing(io.StringIO):
    """A stream without space."""

    encoding = "ascii"

    def write(self, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    flush = lambda self: self.write("")


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
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    with streams.as_logs("stdout"):
        print("größe \udcff")
    assert written.getvalue() == b"gr\\xf6\\xdfe \\udcff\n"


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


FULL = (
    "Expected the standard output to be writable. Received: No space left on device. The program "
    "has completed, and its output is above, on the standard error."
)


@pytest.mark.parametrize("flush", [False, True])
def test_lines_that_a_full_standard_output_lost_are_printed(monkeypatch, capsys, flush):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(Full())))

    def program(values):
        print("one", 1, flush=flush)
        print("two", end="", flush=flush)

    with pytest.raises(SystemExit, match=f"^trainer.any: {FULL}$"):
        entry_point.run("trainer.any", program, ["any"])
    assert capsys.readouterr().err == "one 1\ntwo"


class Full(io.RawIOBase):
    def writable(self):
        return True

    def write(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self):
        """Does not flush."""


@pytest.fixture(params=["full", "without a reader"])
def unwritable(request):
    """Returns a stream that can't be written."""
    if request.param == "full" and not os.path.exists("/dev/full"):
        pytest.skip("no full device")
    reader, writer = os.pipe()
    os.close(reader)
    stream = open("/dev/full" if request.param == "full" else writer, "w")
    yield stream
    with contextlib.suppress(OSError):
        stream.close()


def test_help_without_a_writable_standard_output_has_no_traceback(unwritable):
    options = {"capture_output": False, "stdout": unwritable, "stderr": subprocess.PIPE}
    done = run_python("-m", "trainer.average", "--help", returncode=1, **options)
    assert "Traceback" not in done.stderr
    assert ("--output_dir" in done.stderr) == (unwritable.name == "/dev/full")


def translate_text(texts):
    return [Translation(text, 0.0, False) for text in texts]


@pytest.mark.parametrize("program", [evaluate, train])
def test_files_are_written_although_the_standard_output_can_not_be(
    program, unwritable, monkeypatch, tmp_path, capsys
):
    """As with `> /dev/full` and `| true`."""
    monkeypatch.setattr(model_versions, "load", lambda *_: translate_text)
    monkeypatch.setattr(dry_run, "forecast", lambda _: "forecast")
    text, output = tmp_path / "text", tmp_path / "output"
    text.write_text("a line with four words\n")
    arguments, line = {
        evaluate: (
            ["--saved_model=any", f"--source={text}", f"--target={text}", f"--output={output}"],
            "test BLEU = 100.00\n",
        ),
        train: (["--dry_run", "--preset=tiny", "--data=any", "--model_dir=new"], "forecast\n"),
    }[program]
    is_full = unwritable.name == "/dev/full"
    with contextlib.redirect_stdout(unwritable):
        if is_full:
            Program(program).fails(f"{FULL}$", *arguments)
        else:
            Program(program)(*arguments)
    assert output.exists() == (program is evaluate)
    assert (line in capsys.readouterr().err) == is_full


@pytest.mark.parametrize("number", [1, 2])
def test_outputs_of_one_of_which_the_reader_has_exited(tmp_path, unwritable, number):
    paths = ["-", str(tmp_path / "file")][:number]
    expected, is_full = contextlib.nullcontext(), unwritable.name == "/dev/full"
    if is_full:
        expected = pytest.raises(OSError, match="No space left on device: 'the standard output'")
    elif number == 1:
        expected = pytest.raises(BrokenPipeError)
    redirected = contextlib.redirect_stdout(unwritable)
    with redirected, expected, streams.writing(paths) as files:
        for _ in range(2):
            for file in files:
                file.write(b"line\n")
                file.flush()
    assert is_full or number == 1 or (tmp_path / "file").read_text() == "line\nline\n"


def test_pipe_without_a_reader_is_no_error_of_a_file(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    atomic_files.write_text(f"/dev/fd/{writer}", "text")
    os.close(writer)


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
