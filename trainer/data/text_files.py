"""Sentence pairs from text files, one sentence a line, checked before use and read as a stream."""

import atexit
import gzip
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from trainer.data.corpus import Corpus, digest

_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class TextCorpus(Corpus):
    """Sentence pairs from text files. `read_text` makes one after a check."""

    source_files: tuple[Path, ...]
    target_files: tuple[Path, ...]

    def __iter__(self):
        for source, target in zip(self.source_files, self.target_files, strict=True):
            yield from zip(_lines(source), _lines(target), strict=True)

    def dataset(self):
        return tf.data.Dataset.zip(
            _line_dataset(self.source_files), _line_dataset(self.target_files)
        )

    @property
    def fingerprint(self):
        stats = [
            (os.path.abspath(file), os.stat(file)) for file in self.source_files + self.target_files
        ]
        return digest(
            "text",
            len(self.source_files),
            *((path, stat.st_size, stat.st_mtime_ns) for path, stat in stats),
        )


def read_text(source: str, target: str) -> TextCorpus:
    """Sentence pairs from text files: one sentence a line, UTF-8, plain or, where the name ends in
    .gz, compressed.

    All files are read once to check them.

    Args:
        source: path of the source sentences, or several paths with commas between them.
        target: path of their translations; as many paths as `source`, each with as many lines as
            its source.

    Raises:
        ValueError: if only one side is given, a file is missing, empty, not UTF-8 or not what its
            .gz says, or if files that belong together differ in their number of lines.
    """
    if not source or not target:
        given, missing = ("source", "target") if source else ("target", "source")
        received = f"only {given} files, {source or target}" if source or target else "neither"
        raise ValueError(
            f"Expected source and target files. Received: {received}. Give the {missing} files too."
        )
    sources, targets = (
        tuple(_regular(path) for path in _split_paths(paths)) for paths in (source, target)
    )
    if len(sources) != len(targets):
        raise ValueError(
            f"Expected as many source files as target files. Received: {len(sources)} ({source}) "
            f"and {len(targets)} ({target}). "
            "Give them in pairs, in the same order."
        )
    for source_file, target_file in zip(sources, targets):
        lines = _check_file(source_file), _check_file(target_file)
        if lines[0] != lines[1]:
            raise ValueError(
                f"Expected as many sentences in {source_file} as translations in {target_file}. "
                f"Received: {lines[0]} and {lines[1]} lines. Line n of the one has to be the "
                "translation of line n of the other."
            )
    return TextCorpus(sources, targets)


def _split_paths(paths):
    return tuple(Path(path.strip()) for path in str(paths).split(",") if path.strip())


def _regular(file):
    """Returns the file, or a temporary copy of a pipe, which can be read only once."""
    if not file.exists() or file.is_file() or file.is_dir():
        return file
    copy = tempfile.NamedTemporaryFile(prefix="pipe-", delete=False)
    atexit.register(Path(copy.name).unlink, missing_ok=True)
    with open(file, "rb") as pipe, copy:
        shutil.copyfileobj(pipe, copy)
    return Path(copy.name)


def _open(file):
    return gzip.open(file, "rb") if file.suffix == ".gz" else open(file, "rb")


def _raw_lines(file):
    with _open(file) as lines:
        for line in lines:
            # As tf.data.TextLineDataset has it, which splits at \n only and drops every \r.
            yield line.rstrip(b"\n").replace(b"\r", b"")


def _lines(file):
    return (line.decode("utf-8") for line in _raw_lines(file))


def _line_dataset(files):
    dataset = None
    for file in files:
        compression = "GZIP" if file.suffix == ".gz" else ""
        lines = tf.data.TextLineDataset(
            str(file), compression_type=compression, buffer_size=_READ_BYTES
        )
        dataset = lines if dataset is None else dataset.concatenate(lines)
    return dataset


def _check_file(file):
    """The number of lines of a file that is in order."""
    if not file.is_file():
        received = "a directory" if file.is_dir() else "no such file"
        raise ValueError(f"Expected a text file at {file}. Received: {received}. Check the path.")
    number = 0
    try:
        for number, line in enumerate(_raw_lines(file), start=1):
            if number == 1 and line.startswith(b"\xef\xbb\xbf"):
                raise ValueError(
                    f"Expected {file} without a byte order mark. Received: a file that begins "
                    "with one. "
                    f"Remove it: sed -i '1s/^\\xEF\\xBB\\xBF//' {file}"
                )
            line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Expected UTF-8 in {file}. Received: bytes that are not, "
            f"{error.object[error.start : error.end]!r}, in line {number}. "
            f"Convert the file: iconv -f ISO-8859-1 -t UTF-8 {file} > {file.stem}.utf8 (or name "
            "the encoding that it has)."
        ) from error
    except (gzip.BadGzipFile, EOFError) as error:
        raise ValueError(
            f"Expected {file} to be compressed with gzip, as its name says. Received: a file that "
            f"is not, or is cut: {error}. "
            "Rename it if it is plain text, or make it again."
        ) from error
    if number == 0:
        raise ValueError(
            f"Expected {file} to hold one sentence a line. Received: an empty file. Give a file "
            "with text."
        )
    return number
