"""Tests of programs whose standard streams are closed or full, and of lines of text."""

import contextlib
import errno
import io
import os
import re
import subprocess
import sys

import pytest
from programs import Program
from subprocesses import environment, run_python

from trainer import entry_point, evaluate, streams, train
from trainer.serving import model_versions
from trainer.serving.translator import Translation
from trainer.training import dry_run

FULL = (
    r"Expected a file that can be read or written. Received: the standard output \(No space left "
    r"on device\)\. Free space"
)


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


def ends(stream):
    """Asserts that a block ends the program with an error if the stream is full, or with code 0."""
    return pytest.raises(SystemExit, match=FULL if stream.name == "/dev/full" else "^0$")


@pytest.mark.parametrize("length", [1, 100_000])
@pytest.mark.parametrize("flush", [False, True])
def test_program_ends_at_its_results_if_they_can_not_be_printed(unwritable, length, flush):
    """The error is raised by `print`, or when the program ends."""
    with contextlib.redirect_stdout(unwritable), ends(unwritable):
        entry_point.run("trainer.any", lambda _: print("x" * length, flush=flush), ["any"])


def test_process_without_a_reader_of_its_standard_error_writes_its_result():
    program = (
        "import sys; from trainer import errors, streams\n"
        "with errors.errors_as_exit_codes('any'): streams.report('a line'); print('the result')"
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = run_python("-c", program, capture_output=False, stdout=subprocess.PIPE, stderr=writer)
    os.close(writer)
    assert done.stdout == "the result\n"


def test_end_of_the_process_from_a_thread():
    program = (
        "import signal, threading, time; from trainer import errors\n"
        "end = lambda: errors.end_at_once('trainer.any', signal.SIGINT, 'Rerun it.')\n"
        "threading.Timer(0.01, end).start(); time.sleep(60)"
    )
    done = run_python("-c", program, returncode=130)
    assert done.stderr == "\ntrainer.any: interrupted. Rerun it.\n"


def test_help_without_a_writable_standard_output_has_no_traceback(unwritable):
    options = {"capture_output": False, "stdout": unwritable, "stderr": subprocess.PIPE}
    options |= {"env": environment(PYTHONUNBUFFERED="1")}
    is_full = unwritable.name == "/dev/full"
    done = run_python("-m", "trainer.average", "--help", returncode=int(is_full), **options)
    assert re.fullmatch(f"trainer.average: {FULL}.*\n" if is_full else "", done.stderr)


def translate_text(texts):
    return [Translation(text, 0.0, False) for text in texts]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_files_are_written_although_a_standard_stream_can_not_be(
    stream, unwritable, monkeypatch, tmp_path, capsys
):
    """As with `> /dev/full`, `| true` and `2>&1 | true`."""
    monkeypatch.setattr(model_versions, "load", lambda *_: translate_text)
    text, output = tmp_path / "text", tmp_path / "output"
    text.write_text("a line with four words\n")
    monkeypatch.setattr(sys, stream, unwritable)
    with ends(unwritable) if stream == "stdout" else contextlib.nullcontext():
        Program(evaluate)("--saved_model=any", source=text, target=text, output=output)
    assert output.read_text() == text.read_text()
    assert stream == "stdout" or "test BLEU = 100.00\n" in capsys.readouterr().out


def test_dry_run_without_a_writable_standard_output(unwritable, monkeypatch):
    monkeypatch.setattr(dry_run, "forecast", lambda _: "forecast")
    with contextlib.redirect_stdout(unwritable), ends(unwritable):
        Program(train)("--dry_run", "--preset=tiny", "--data=any", "--model_dir=new")


@pytest.mark.parametrize("number", [1, 2])
def test_outputs_of_one_of_which_the_reader_has_exited(tmp_path, unwritable, number):
    paths = ["-", str(tmp_path / "file")][:number]
    expected, is_full = contextlib.nullcontext(), unwritable.name == "/dev/full"
    if is_full:
        expected = pytest.raises(OSError, match="No space left on device: 'the standard output'")
    elif number == 1:
        expected = pytest.raises(BrokenPipeError)
    redirected = contextlib.redirect_stdout(unwritable)
    with redirected, expected, streams.writing(paths) as write:
        for _ in range(2):
            write([b"line\n"] * number, flush=True)
    assert is_full or number == 1 or (tmp_path / "file").read_text() == "line\nline\n"


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


def test_characters_that_a_stream_can_not_encode_are_escaped(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    streams.prepare()
    streams.write_line("größe \udcff")
    assert written.getvalue() == b"gr\\xf6\\xdfe \\udcff\n"


def test_count_lines_of_a_pipe_returns_none():
    read, write = os.pipe()
    os.close(write)
    with open(read, "rb") as file:
        assert streams.count_lines(file) is None


def test_check_files_rejects_compressed_outputs_and_ignores_devices():
    streams.check_files({"output": "/dev/null", "tokens": "/dev/null"})
    message = "Expected --output without .gz, because outputs are plain text. Received: out.gz."
    with pytest.raises(ValueError, match=message):
        streams.check_files({"input": "in.gz", "output": "out.gz"})


def test_errors_of_reading_name_the_input():
    def read():
        yield b"a\n"
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for path, name in (("-", "the standard input"), ("in", "in")):
        with pytest.raises(OSError, match="Input/output error") as caught:
            list(streams.lines(read(), path))
        assert caught.value.filename == name
