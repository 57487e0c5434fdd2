"""Input and output streams: files, pipes, standard streams, and a prompt on terminals."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from trainer.data.text_files import open_text

STANDARD = "-"
PROMPT = "> "


@contextlib.contextmanager
def reading(path: str) -> Iterator[BinaryIO]:
    """Opens a file for reading, or the standard input for `-`. Decompresses files named *.gz.

    Raises:
        ValueError: if the file can't be read, or is not compressed despite its name.
    """
    if path == STANDARD:
        yield sys.stdin.buffer
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open_text(path))
        except OSError as error:
            raise ValueError(
                f"Expected a file that can be read. Received: {path} ({error.strerror})."
            ) from error
        yield file


@contextlib.contextmanager
def writing(paths: Sequence[str]) -> Iterator[list[BinaryIO]]:
    """Opens files for writing, or the standard output for `-`. Flushes them at the end."""
    with contextlib.ExitStack() as stack:
        files = [
            sys.stdout.buffer if path == STANDARD else stack.enter_context(open(path, "wb"))
            for path in paths
        ]
        yield files
        for file in files:
            file.flush()


def typed_lines() -> Iterator[bytes]:
    """Prompts for lines on the terminal of the standard input until Ctrl-D.

    Lines can be edited and recalled if Python has readline. If the standard output is not a
    terminal, the prompt is written to the standard error, so that the output contains only
    translations.

    Yields:
        Each line without the line end, in the encoding of the terminal.
    """
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (input() edits lines once it is imported)
    sys.stdin.reconfigure(errors="surrogateescape")
    prompted = sys.stdout if sys.stdout.isatty() else sys.stderr
    while True:
        try:
            with contextlib.redirect_stdout(prompted):
                line = input(PROMPT)
        except EOFError:
            print(file=prompted)
            return
        yield line.encode(sys.stdin.encoding, "surrogateescape")


def can_be_renamed(path: str) -> bool:
    """Returns whether a path is a regular file or does not exist. False for pipes and devices."""
    return path != STANDARD and (os.path.isfile(path) or not os.path.exists(path))


def check_files(flags: dict[str, str]):
    """Checks that paths are different files, and outputs not *.gz. Ignores pipes and devices.

    Args:
        flags: paths by name of the flag.

    Raises:
        ValueError: if two paths refer to the same file, or an output is named *.gz.
    """
    seen = {}
    for name, path in flags.items():
        if not can_be_renamed(path):
            continue
        if name in ("output", "alignments", "tokens") and path.endswith(".gz"):
            raise ValueError(
                f"Expected --{name} without .gz, because outputs are plain text. Received: {path}."
            )
        real = os.path.realpath(path)
        if real in seen:
            raise ValueError(
                f"Expected --{name} and --{seen[real]} to be different files. Received: {path} "
                "for both."
            )
        seen[real] = name


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
