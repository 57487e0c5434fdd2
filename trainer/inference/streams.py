"""Files and standard streams to read from and to write to."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import BinaryIO

STANDARD = "-"


@contextlib.contextmanager
def reading(path: str) -> Iterator[BinaryIO]:
    """A file, or the standard input for `-`."""
    if path == STANDARD:
        yield sys.stdin.buffer
        return
    try:
        file = open(path, "rb")
    except OSError as error:
        raise ValueError(
            f"Expected a file that can be read. Received: {path} ({error.strerror})."
        ) from error
    with file:
        yield file


@contextlib.contextmanager
def writing(paths: Sequence[str]) -> Iterator[list[BinaryIO]]:
    """Files, and the standard output for `-`, flushed at the end."""
    with contextlib.ExitStack() as stack:
        files = [
            sys.stdout.buffer if path == STANDARD else stack.enter_context(open(path, "wb"))
            for path in paths
        ]
        yield files
        for file in files:
            file.flush()


def can_be_renamed(path: str) -> bool:
    """Whether a path is a regular file's, or nothing's yet: no standard stream, pipe or device."""
    return path != STANDARD and (os.path.isfile(path) or not os.path.exists(path))


def refuse_same_files(flags: dict[str, str]):
    """Refuses flags that name one file twice.

    Args:
        flags: the path of each flag by its name.

    Example:
        >>> refuse_same_files({"input": "a.en", "output": "-", "tokens": "-"})
        >>> flags = {"input": "a.en", "output": "b.de", "tokens": "./b.de"}
        >>> refuse_same_files(flags)  # doctest: +NORMALIZE_WHITESPACE
        Traceback (most recent call last):
            ...
        ValueError: Expected --tokens to be another file than --output, which it would
        overwrite. Received: ./b.de.
    """
    seen = {}
    for name, path in flags.items():
        real = os.path.realpath(path)
        if path == STANDARD or (os.path.exists(path) and not os.path.isfile(path)):
            continue
        if real in seen:
            raise ValueError(
                f"Expected --{name} to be another file than --{seen[real]}, which it would "
                f"overwrite. Received: {path}."
            )
        seen[real] = name


def relative(paths: dict[str, str]) -> dict[str, str]:
    """Paths as seen from the folder of the first, links resolved: the same wherever the folder
    lies.

    Example:
        >>> relative({"output": "runs/a.de", "tokens": "runs/more/../a.tokens"})
        {'output': 'a.de', 'tokens': 'a.tokens'}
    """
    real = {name: os.path.realpath(path) for name, path in paths.items()}
    folder = os.path.dirname(next(iter(real.values())))
    return {name: os.path.relpath(path, folder) for name, path in real.items()}


def count_lines(file: BinaryIO) -> int | None:
    """The number of lines from here to the end, where the file can be read twice."""
    if not file.seekable():
        return None
    start = file.tell()
    count, last = 0, b"\n"
    while block := file.read(1 << 20):
        count, last = count + block.count(b"\n"), block[-1:]
    file.seek(start)
    return count + (last != b"\n")
