"""Input and output streams: files, pipes, standard streams, and a prompt on terminals."""

import contextlib
import itertools
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from trainer import atomic_files, standard_streams
from trainer.atomic_files import OutputFile
from trainer.data.text_files import open_text, read_lines
from trainer.data.text_formats import check_format

STANDARD = "-"
PROMPT = "> "


@contextlib.contextmanager
def reading(path: str) -> Iterator[BinaryIO]:
    """Opens a file for reading, or the standard input for `-`. Decompresses gzip files.

    Raises:
        ValueError: if the file can't be read, or is not text.
    """
    if path == STANDARD:
        yield standard_streams.standard_input()
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
def writing(paths: Sequence[str]) -> Iterator[list[OutputFile]]:
    """Opens files for writing, or the standard output for `-`.

    Regular files replace `paths` when the block ends without an error.
    """
    with contextlib.ExitStack() as stack:
        files = [
            OutputFile(standard_streams.standard_output(), "the standard output")
            if path == STANDARD
            else stack.enter_context(atomic_files.output_file(path))
            for path in paths
        ]
        yield files
        for file in files:
            file.flush()


def lines(source: BinaryIO, path: str) -> Iterator[bytes]:
    """Yields the lines of a binary stream without line ends, as training reads them.

    Raises:
        ValueError: if the first line is not text.
    """
    source = iter(source)
    for first in itertools.islice(source, 1):
        check_format(first, "the standard input" if path == STANDARD else path)
        source = itertools.chain([first], source)
    yield from read_lines(source)


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
    prompted = sys.stdout if sys.stdout is not None and sys.stdout.isatty() else sys.stderr
    while True:
        try:
            with contextlib.redirect_stdout(prompted):
                line = input(PROMPT)
        except EOFError:
            print(file=prompted)
            return
        yield line.encode(sys.stdin.encoding, "surrogateescape")


def check_files(flags: dict[str, str]):
    """Checks that paths are different files, and outputs not *.gz. Ignores pipes and devices.

    Args:
        flags: paths by name of the flag.

    Raises:
        ValueError: if two paths refer to the same file, or an output is named *.gz.
    """
    seen = {}
    for name, path in flags.items():
        is_plain = path != STANDARD and not atomic_files.is_stream(path)
        if is_plain and name in ("output", "alignments", "tokens") and path.endswith(".gz"):
            raise ValueError(
                f"Expected --{name} without .gz, because outputs are plain text. Received: {path}."
            )
        file = _identify(name, path)
        if file in seen:
            raise ValueError(
                f"Expected --{name} and --{seen[file]} to be different files. Received: {path} "
                "for both."
            )
        if file is not None:
            seen[file] = name


def _identify(name, path):
    """Returns a value that is equal for two names of a regular file, or None for other files."""
    try:
        if path == STANDARD:
            status = os.fstat((sys.stdin if name == "input" else sys.stdout).fileno())
        else:
            status = os.stat(path)
    except (OSError, AttributeError):  # The standard streams may be closed or replaced.
        return None if path == STANDARD else os.path.realpath(path)
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


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
