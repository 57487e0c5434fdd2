"""The standard streams of a program.

Messages for users are a log. If they can't be printed, for example because the reader of a pipe has
gone or the disk is full, the program continues.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import BinaryIO, TextIO

_NAMES = {"stdout": "the standard output", "stderr": "the standard error"}


def prepare():
    """Makes the standard streams safe to print to. Programs call this function first.

    Closed streams are opened as /dev/null. Otherwise the next file that the program opens would
    have the number of a standard stream, and messages of libraries would be written to it.
    Characters that the encoding of a stream doesn't have are printed as escape sequences.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # returns the smallest number that is not in use
    if sys.stderr is None:
        # print(file=None) prints to the standard output.
        sys.stderr = open(os.devnull, "w")
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict":
            stream.reconfigure(errors="backslashreplace")


def standard_input() -> BinaryIO:
    """Returns the standard input, for bytes.

    Raises:
        ValueError: if it is closed.
    """
    if sys.stdin is None:
        raise ValueError(
            "Expected text on the standard input. Received: a closed one. Give --input=FILE, or "
            "redirect a file to it."
        )
    return sys.stdin.buffer


def standard_output() -> BinaryIO:
    """Returns the standard output, for bytes.

    Raises:
        ValueError: if it is closed.
    """
    if sys.stdout is None:
        raise ValueError(
            "Expected a standard output for the results. Received: a closed one. Give "
            "--output=FILE, or redirect it to a file."
        )
    return sys.stdout.buffer


class Log:
    """A text stream of messages. What can't be written to `stream` is lost, with one warning.

    Characters that the encoding of the stream doesn't have are written as escape sequences.

    Args:
        stream: the stream.
        name: name of the stream in the warning.
    """

    def __init__(self, stream: TextIO, name: str):
        self._stream = stream
        self._name = name
        self._has_failed = False

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes text, or loses it."""
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        printable = text.encode(encoding, "backslashreplace").decode(encoding)
        self._try(self._stream.write, printable)
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


@contextlib.contextmanager
def as_logs(*names: str) -> Iterator[None]:
    """Replaces `sys.stdout`, `sys.stderr` or both by a `Log` while the block runs.

    Args:
        *names: "stdout", "stderr" or both.
    """
    streams = {name: getattr(sys, name) for name in names}
    with open(os.devnull, "w") as null:
        for name, stream in streams.items():
            setattr(sys, name, Log(null if stream is None else stream, _NAMES[name]))
        try:
            yield
        finally:
            for name, stream in streams.items():
                setattr(sys, name, stream)
                flush_or_discard(stream)


def flush_or_discard(stream: TextIO | None) -> bool:
    """Flushes a stream. If that fails, redirects it to /dev/null and returns False.

    The interpreter flushes the standard streams on exit. It would report the same error again.
    """
    try:
        if stream is not None:
            stream.flush()
        return True
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):  # The stream may have no descriptor.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
