"""The standard streams of a program, and files and pipes of text.

A program writes its files, then prints. Lines that report its progress are lost if they can't be
printed, for example because the reader of a pipe has exited. Its results are not: see
`errors.errors_as_exit_codes`.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, TextIO

from . import atomic_files
from .atomic_files import STANDARD
from .data.text_files import check_exists, open_text, read_lines


def prepare():
    """Makes the standard streams safe to print to, before a program opens a file.

    Closed streams are opened as /dev/null. Otherwise messages would be written to the next file
    that the program opens. Characters that an encoding does not have are escaped.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # `open` takes the smallest number that is not in use: that of the closed stream.
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict":
            stream.reconfigure(errors="backslashreplace")


def write_line(line: str, stream: TextIO | None = None):
    """Writes a line to `stream`, above the progress bar if there is one, or loses it.

    Default: the standard output. If its reader has exited, all further lines are lost.
    """
    from tqdm import tqdm

    stream = sys.stdout if stream is None else stream
    with contextlib.suppress(OSError):
        try:
            tqdm.write(line, file=stream)
            stream.flush()
        except BrokenPipeError:
            flush_or_discard(stream)


def report(*lines: str):
    """Writes lines to the standard error, as `write_line`."""
    for line in lines:
        write_line(line, sys.stderr)


def flush_or_discard(stream: TextIO | BinaryIO):
    """Flushes a stream. If that fails, redirects it to /dev/null.

    The interpreter flushes the standard streams on exit. It would report the same error again.
    """
    try:
        stream.flush()
    except OSError:
        with contextlib.suppress(OSError):  # The stream may have no descriptor.
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
def writing(paths: Sequence[str]) -> Iterator[Callable]:
    """Opens files to write lines to, as `atomic_files.output_file`.

    Yields:
        A function `write(texts, flush=False)`, which writes a text to each file. If the reader of
        one of several files has exited, the others are still written. If it is the only file,
        BrokenPipeError is raised.
    """
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(atomic_files.output_file(path)) for path in paths]

        def write(texts, *, flush=False):
            for path, file, text in zip(paths, files, texts, strict=True):
                try:
                    with atomic_files.naming(path):
                        file.write(text)
                        if flush:
                            file.flush()
                except BrokenPipeError:
                    if len(paths) == 1:
                        raise
                    flush_or_discard(file)

        yield write
        write([b""] * len(paths), flush=True)


def lines(source: BinaryIO, path: str) -> Iterator[bytes]:
    """Yields the lines of a binary stream without line ends, as training reads them."""
    # A line is yielded before the next is read, because a program may wait for its translation.
    with atomic_files.naming("the standard input" if path == STANDARD else path):
        yield from read_lines(source)


def check_files(flags: dict[str, str]):
    """Raises ValueError if two paths are the same file, or the name of an output ends in .gz.

    Pipes and devices are not checked.
    """
    seen = {}
    for name, path in flags.items():
        if atomic_files.is_stream(path):
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
