"""Sentence pairs from text files with one sentence per line."""

import atexit
import contextlib
import gzip
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from trainer.data.corpus import Corpus, digest


@dataclass(frozen=True)
class TextCorpus(Corpus):
    """A corpus in text files, read as a stream. Create it with `read_text`, which checks them."""

    source_files: tuple[Path, ...]
    target_files: tuple[Path, ...]

    def __iter__(self):
        for files in zip(self.source_files, self.target_files, strict=True):
            for source, target in zip(*map(_lines, files), strict=True):
                yield source.decode("utf-8"), target.decode("utf-8")

    @property
    def fingerprint(self):
        files = self.source_files + self.target_files
        stats = [(file.absolute(), file.stat()) for file in files]
        versions = [(str(file), stat.st_size, stat.st_mtime_ns) for file, stat in stats]
        return digest("text", len(self.source_files), *versions)


def read_text(source: str, target: str) -> TextCorpus:
    """Returns the sentence pairs of text files, after checking the files.

    Files have one sentence per line in UTF-8. Files whose names end in .gz are decompressed. A pipe
    is copied to a temporary file.

    Args:
        source: path of the source sentences, or several paths separated by commas.
        target: path of their translations, or as many paths as in `source`. Line n of a file is the
            translation of line n of the corresponding source file.

    Raises:
        ValueError: if a side is not given; if a file is missing, empty, not in UTF-8, or not
            compressed despite its suffix .gz; or if source and target have different numbers of
            lines.
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
    for source_file, target_file in zip(sources, targets):
        lines = _check_file(source_file), _check_file(target_file)
        if lines[0] != lines[1]:
            raise ValueError(
                f"Expected as many sentences in {source_file} as translations in {target_file}. "
                f"Received: {lines[0]} and {lines[1]} lines. Line n of the target file must be the "
                "translation of line n of the source file."
            )
    return TextCorpus(sources, targets)


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
    """Opens a file to read bytes, decompressed if its name ends in .gz.

    Raises:
        OSError: if the file can't be opened.
        ValueError: while the file is read, if it is not compressed despite its name, or corrupt.
    """
    with (gzip.open if os.fspath(path).endswith(".gz") else open)(path, "rb") as file:
        try:
            yield file
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(
                f"Expected {path} to be a gzip file, because of its suffix. Received: a truncated "
                f"or corrupt file, or another format ({error}). Rename it if it is plain text, or "
                "compress it again."
            ) from error


def _lines(file):
    """Yields lines as bytes. Like tf.data.TextLineDataset, splits at \\n only and removes \\r."""
    with open_text(file) as lines:
        for line in lines:
            yield line.rstrip(b"\n").replace(b"\r", b"")


def _check_file(file):
    """Checks a file and returns its number of lines."""
    if not file.is_file():
        received = "a directory" if file.is_dir() else "no such file"
        raise ValueError(f"Expected a text file at {file}. Received: {received}. Check the path.")
    unzip = f"gunzip {file} && " if file.suffix == ".gz" else ""
    plain = str(file).removesuffix(".gz")
    number = 0
    try:
        for number, line in enumerate(_lines(file), start=1):
            if number == 1 and line.startswith(b"\xef\xbb\xbf"):
                raise ValueError(
                    f"Expected {file} without a byte order mark. Received: a file that starts "
                    f"with one. Remove it: {unzip}sed -i '1s/^\\xEF\\xBB\\xBF//' {plain}"
                )
            line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Expected UTF-8 in {file}. Received: invalid bytes "
            f"{error.object[error.start : error.end]!r} in line {number}. Convert the file from "
            f"its encoding, such as: {unzip}iconv -f ISO-8859-1 -t UTF-8 {plain} > {plain}.utf8"
        ) from error
    if number == 0:
        raise ValueError(
            f"Expected {file} to have one sentence per line. Received: an empty file. Use a file "
            "with text."
        )
    return number
