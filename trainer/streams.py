"""The streams of a program: files and pipes of text, and the standard streams.

Messages for users are a log. If they can't be printed, for example because the reader of a pipe has
gone or the disk is full, the program continues. So it does if results can't be printed. Those that
the disk has no space for are written to the standard error.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import BinaryIO, TextIO

from . import atomic_files
from .data.text_files import check_exists, check_format, open_text, read_lines

_NAMES = {
    "stdin": "the standard input",
    "stdout": "the standard output",
    "stderr": "the standard error",
}
STANDARD = "-"


def prepare():
    """Makes the standard streams safe to print to, before a program opens a file.

    Closed streams are opened as /dev/null. Otherwise the next file that the program opens would
    have the number of a standard stream, and messages of libraries would be written to it.
    Characters that the encoding of a stream doesn't have are printed as escape sequences.
    """
    for name in _NAMES:
        if getattr(sys, name) is None:
            # `open` takes the smallest number that is not in use: that of the closed stream.
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict":
            stream.reconfigure(errors="backslashreplace")


def write_line(line: str):
    """Writes a line to the standard output, above the progress bar if there is one."""
    from tqdm import tqdm

    tqdm.write(line)
    sys.stdout.flush()


class Log:
    """A text stream of messages. Text that can't be written is dropped, with one warning."""

    def __init__(self, stream: TextIO, name: str):
        self._stream = stream
        self._name = name
        self._has_failed = False

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes text, or loses it."""
        self._try(self._stream.write, text)
        return len(text)

    def flush(self):
        """Flushes the stream, or does nothing if that fails."""
        self._try(self._stream.flush)

    def _try(self, operation, *arguments):
        try:
            operation(*arguments)
        except (OSError, ValueError) as error:  # ValueError: the stream is closed.
            if not self._has_failed:
                self._has_failed = True
                reason = getattr(error, "strerror", None) or error
                print(
                    f"warning: can't write to {self._name}: {reason}. The program continues.",
                    file=sys.stderr,
                )


class Results(Log):
    """The standard output of results. Lines that can't be written go to the standard error.

    They are dropped if the reader of a pipe has exited. `error` is the first error, or None.
    """

    def __init__(self, stream: TextIO):
        super().__init__(stream, _NAMES["stdout"])
        self.error = None
        self._unwritten = ""

    def write(self, text: str) -> int:
        """Writes text, and flushes it at the end of a line."""
        self._unwritten += text
        if "\n" in text:
            self.flush()
        return len(text)

    def flush(self):
        """Flushes the stream, or writes its text to the standard error."""
        text, self._unwritten = self._unwritten, ""
        if self.error is None:
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError) as error:  # ValueError: the stream is closed.
                self.error = error
        if self.has_failed:
            sys.stderr.write(text)
            sys.stderr.flush()

    @property
    def has_failed(self) -> bool:
        """Whether the stream can't be written, although its reader has not exited."""
        return self.error is not None and not isinstance(self.error, BrokenPipeError)


@contextlib.contextmanager
def as_results() -> Iterator[Results]:
    """Replaces `sys.stdout` by a `Results` while the block runs."""
    prepare()
    results = Results(sys.stdout)
    with _replaced(stdout=results):
        yield results


def as_logs(*names: str) -> contextlib.AbstractContextManager[None]:
    """Replaces the streams "stdout", "stderr" or both by a `Log` while the block runs."""
    prepare()
    return _replaced(**{name: Log(getattr(sys, name), _NAMES[name]) for name in names})


@contextlib.contextmanager
def _replaced(**logs):
    """Replaces standard streams while the block runs."""
    streams = {name: getattr(sys, name) for name in logs}
    for name, log in logs.items():
        setattr(sys, name, log)
    try:
        yield
    finally:
        for name, stream in streams.items():
            logs[name].flush()
            setattr(sys, name, stream)
            flush_or_discard(stream)


def flush_or_discard(stream: TextIO):
    """Flushes a stream. If that fails, redirects it to /dev/null.

    The interpreter flushes the standard streams on exit. It would report the same error again.
    """
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):  # The stream may have no descriptor.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def reading(path: str) -> Iterator[BinaryIO]:
    """Opens a file for reading, or the standard input for `-`. Decompresses gzip files.

    Raises:
        ValueError: if the file does not exist.
    """
    if path == STANDARD:
        yield sys.stdin.buffer
        return
    check_exists(path)
    with open_text(path) as file:
        yield file


@contextlib.contextmanager
def writing(paths: Sequence[str]) -> Iterator[list[BinaryIO]]:
    """Opens files for writing, or the standard output for `-`.

    Regular files replace `paths` when the block ends without an error. If the reader of one of
    several outputs has exited, the others are still written.

    Raises:
        BrokenPipeError: while a file is written, if the reader of the only output has exited.
    """
    with contextlib.ExitStack() as stack:
        files = [
            sys.stdout.buffer
            if path == STANDARD
            else stack.enter_context(atomic_files.output_file(path))
            for path in paths
        ]
        names = [_NAMES["stdout"] if path == STANDARD else path for path in paths]
        files = [_Output(*pair, is_only=len(paths) == 1) for pair in zip(files, names)]
        yield files
        for file in files:
            file.flush()


class _Output:
    """A binary file whose errors name it. See `writing`."""

    def __init__(self, file, name, *, is_only):
        self._file = file
        self._name = name
        self._is_only = is_only

    def write(self, data):
        self._try(self._file.write, data)

    def flush(self):
        self._try(self._file.flush)

    def _try(self, operation, *arguments):
        try:
            with atomic_files.naming(self._name):
                operation(*arguments)
        except BrokenPipeError:
            if self._is_only:
                raise
            flush_or_discard(self._file)


def lines(source: BinaryIO, path: str) -> Iterator[bytes]:
    """Yields the lines of a binary stream without line ends, as training reads them.

    Raises:
        ValueError: if the first two lines are not text.
    """
    name = _NAMES["stdin"] if path == STANDARD else path
    # A line is yielded before the next is read, because a program may wait for its translation.
    with atomic_files.naming(name):
        yield from read_lines(_with_checked_start(source, name))


def _with_checked_start(source, name):
    start = b""
    for number, line in enumerate(source):
        if number < 2:
            start += line
            check_format(start, name)
        yield line


def check_files(flags: dict[str, str]):
    """Raises ValueError if two paths are the same file, or the name of an output ends in .gz.

    Pipes and devices are not checked.
    """
    seen = {}
    for name, path in flags.items():
        if path == STANDARD or atomic_files.is_stream(path):
            continue
        if name in ("output", "alignments", "tokens") and path.endswith(".gz"):
            raise ValueError(
                f"Expected --{name} without .gz, because outputs are plain text. Received: {path}."
            )
        other = seen.setdefault(os.path.realpath(path), name)
        if other != name:
            raise ValueError(
                f"Expected --{name} and --{other} to be different files. Received: {path} for both."
            )


def count_lines(file: BinaryIO) -> int | None:
    """Returns the number of lines after the current position, or None if `file` can't seek."""
    if not file.seekable():
        return None
    start = file.tell()
    count, last = 0, b"\n"
    while block := file.read(1 << 20):
        count, last = count + block.count(b"\n"), block[-1:]
    file.seek(start)
    return count + (last != b"\n")
