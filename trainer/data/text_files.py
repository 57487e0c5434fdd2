r"""Text files with one sentence per line: the format that all programs read.

A line ends in \n or \r\n. Any other \r is read as a space. Files that start like gzip files are
decompressed.
"""

import atexit
import contextlib
import gzip
import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .corpus import PAIR, TEXT, Corpus, digest

_BLOCK_BYTES = 1 << 20  # Lines of about this size are checked together.
_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class TextCorpus(Corpus):
    """A corpus in text files, read as a stream: files and hashes of the lines of each side.

    Create it with `read_text` or `read_one_side`, which check the files.
    """

    files: tuple[tuple[Path, ...], ...]
    contents: tuple[str, ...]
    sides: tuple[str, ...] = PAIR

    def __iter__(self):
        for files in zip(*self.files, strict=True):
            for lines in zip(*map(_lines, files), strict=True):
                yield tuple(line.decode("utf-8") for line in lines)

    @property
    def fingerprint(self):
        return digest("text contents", *self.contents)


def read_text(source: str, target: str) -> TextCorpus:
    """Returns the sentence pairs of text files, after checking the files.

    Files have one sentence per line in UTF-8, plain or compressed by gzip. A pipe is copied to a
    temporary file.

    Args:
        source: path of the source sentences, or several paths separated by commas.
        target: path of their translations, or as many paths as in `source`. Line n of a file is the
            translation of line n of the corresponding source file.

    Raises:
        ValueError: if a side is not given; if a file is missing, empty, not in UTF-8, a corrupt
            gzip file, or has lines that end in \\r only; or if source and target have different
            numbers of lines.
    """
    if not source or not target:
        given, missing = ("source", "target") if source else ("target", "source")
        received = f"only {given} files, {source or target}" if source or target else "neither"
        raise ValueError(
            f"Expected source and target files. Received: {received}. Give the {missing} files too."
        )
    sources, targets = (_split_paths(paths) for paths in (source, target))
    if len(sources) != len(targets):
        raise ValueError(
            f"Expected as many source files as target files. Received: {len(sources)} ({source}) "
            f"and {len(targets)} ({target}). Give one target file per source file, in the same "
            "order."
        )
    hashes = [hashlib.blake2b(digest_size=32) for _ in range(2)]
    for files in zip(sources, targets):
        lines = [_check_file(file, content) for file, content in zip(files, hashes)]
        if lines[0] != lines[1]:
            raise ValueError(
                f"Expected as many sentences in {files[0]} as translations in {files[1]}. "
                f"Received: {lines[0]} and {lines[1]} lines. Line n of the target file must be the "
                "translation of line n of the source file."
            )
    return TextCorpus((sources, targets), tuple(content.hexdigest() for content in hashes))


def read_one_side(text: str) -> TextCorpus:
    """Returns the lines of text files as the corpus of a language model, as `read_text`."""
    files, content = _split_paths(text), hashlib.blake2b(digest_size=32)
    for file in files:
        _check_file(file, content)
    return TextCorpus((files,), (content.hexdigest(),), TEXT)


def _split_paths(paths):
    return tuple(_copy_pipe(Path(path.strip())) for path in str(paths).split(",") if path.strip())


def _copy_pipe(file):
    """Returns a temporary copy of a pipe, which can be read only once, or `file` itself."""
    if not file.exists() or file.is_file() or file.is_dir():
        return file
    copy = tempfile.NamedTemporaryFile(prefix="pipe-", delete=False)
    atexit.register(Path(copy.name).unlink, missing_ok=True)
    with open(file, "rb") as pipe, copy:
        shutil.copyfileobj(pipe, copy)
    return Path(copy.name)


@contextlib.contextmanager
def open_text(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Opens a file to read bytes. Files that start like gzip files are decompressed.

    Raises ValueError in the block for a corrupt gzip file.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(path, "rb"))
        if file.peek(len(_GZIP)).startswith(_GZIP):
            file = stack.enter_context(gzip.GzipFile(fileobj=file))
        try:
            yield file
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(
                f"Expected {path} to be a gzip file, because of its first bytes. Received: a "
                f"truncated or corrupt file ({error}). Compress it again."
            ) from error


def read_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the lines of a binary file without line ends, as the top of this module says."""
    for line in lines:
        yield line.rstrip(b"\r\n").replace(b"\r", b" ")


def _lines(file):
    with open_text(file) as lines:
        yield from read_lines(lines)


def _check_file(file, content) -> int:
    """Checks a file, adds its lines to the hash `content`, and returns their number.

    The hash depends neither on line ends nor on the division into files. Blocks of lines are faster
    than lines.
    """
    check_exists(file)
    number = 0
    with open_text(file) as text:
        while lines := text.readlines(_BLOCK_BYTES):
            block = b"".join(lines)
            if number == 0:
                _check_start(file, block)
            _check_encoding(file, block, number)
            if b"\r" in block:
                block = b"".join(line + b"\n" for line in read_lines(lines))
            elif not block.endswith(b"\n"):
                block += b"\n"
            content.update(block)
            number += len(lines)
    if number == 0:
        raise ValueError(
            f"Expected {file} to have one sentence per line. Received: an empty file. Use a file "
            "with text."
        )
    return number


def check_exists(path: str | os.PathLike):
    """Raises ValueError if a path is that of a directory, or of nothing."""
    if not os.path.exists(path) or os.path.isdir(path):
        received = "a directory" if os.path.isdir(path) else "no such file"
        raise ValueError(f"Expected a text file at {path}. Received: {received}. Check the path.")


def _check_start(file, block):
    """Checks the first lines of a file: its byte order mark, and line ends."""
    if block.startswith(_BYTE_ORDER_MARK):
        raise ValueError(
            f"Expected {file} without a byte order mark. Received: a file that starts with one. "
            "Remove it with: sed '1s/^\\xEF\\xBB\\xBF//'"
        )
    if b"\n" not in block and (block.endswith(b"\r") or block.count(b"\r") > 1):
        raise ValueError(
            f"Expected lines of {file} to end in a line feed. Received: a file whose lines end in "
            "a carriage return only, as on old Macintosh computers. Convert it with: tr '\\r' '\\n'"
        )


def _check_encoding(file, block, number):
    """Checks that a block of lines, which follows line `number`, is UTF-8 text."""
    if b"\0" in block:
        line = number + block.count(b"\n", 0, block.index(b"\0")) + 1
        raise ValueError(
            f"Expected UTF-8 text in {file}. Received: a NUL byte in line {line}, as in UTF-16 and "
            "in archives. Remove it with: tr -d '\\0', or convert the file with: iconv -f UTF-16LE "
            "-t UTF-8"
        )
    try:
        block.decode("utf-8")
    except UnicodeDecodeError as error:
        line = number + block.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"Expected UTF-8 text in {file}. Received: invalid bytes "
            f"{error.object[error.start : error.end]!r} in line {line}. Convert the file from its "
            "encoding, such as with: iconv -f ISO-8859-1 -t UTF-8"
        ) from error
