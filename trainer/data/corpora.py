"""Corpora: where pairs of sentences come from."""

import abc
import gzip
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from trainer.data import synthetic

_LINES_AT_ONCE = 1 << 20  # bytes
_TFDS_SPLITS = {"dev": "validation"}


class Corpus(abc.ABC):
    """Pairs of a source sentence and its translation. Iterating gives pairs of str, in order, as often as one likes."""

    @abc.abstractmethod
    def __iter__(self) -> Iterator[tuple[str, str]]: ...

    @abc.abstractmethod
    def dataset(self) -> tf.data.Dataset:
        """The pairs as string scalars, UTF-8."""

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Differs where the pairs may differ: what is derived from them can be kept under this name."""

    def sources(self) -> Iterator[str]:
        """The source sentences, in order."""
        return (source for source, _ in self)

    def targets(self) -> Iterator[str]:
        """The translations, in order."""
        return (target for _, target in self)

    def sentences(self) -> Iterator[str]:
        """The sentences of both languages: what a joint vocabulary is learned from."""
        return (sentence for pair in self for sentence in pair)


@dataclass(frozen=True)
class TextCorpus(Corpus):
    """Sentence pairs from text files, one sentence a line, read as a stream. `read_text` makes one after a check."""

    source_files: tuple[Path, ...]
    target_files: tuple[Path, ...]

    def __iter__(self):
        for source, target in zip(self.source_files, self.target_files, strict=True):
            yield from zip(_lines(source), _lines(target), strict=True)

    def dataset(self):
        return tf.data.Dataset.zip(_line_dataset(self.source_files), _line_dataset(self.target_files))

    @property
    def fingerprint(self):
        stats = [(os.path.abspath(file), os.stat(file)) for file in self.source_files + self.target_files]
        return _digest("text", len(self.source_files), *((path, stat.st_size, stat.st_mtime_ns) for path, stat in stats))


@dataclass(frozen=True)
class PairCorpus(Corpus):
    """Sentence pairs that are in memory."""

    pairs: tuple[tuple[str, str], ...]

    def __iter__(self):
        return iter(self.pairs)

    def dataset(self):
        sources, targets = zip(*self.pairs)
        return tf.data.Dataset.from_tensor_slices((list(sources), list(targets)))

    @property
    def fingerprint(self):
        return _digest("pairs", *self.pairs)


@dataclass(frozen=True)
class TfdsCorpus(Corpus):
    """Sentence pairs from a prepared translation set of TensorFlow Datasets. `read_tfds` makes one."""

    name: str
    split: str
    source_language: str
    target_language: str
    data_dir: str | None = None

    def __iter__(self):
        for source, target in self.dataset().as_numpy_iterator():
            yield source.decode("utf-8", errors="replace"), target.decode("utf-8", errors="replace")

    def dataset(self):
        examples = _tfds_builder(self.name, self.data_dir).as_dataset(split=self.split, shuffle_files=False)
        return examples.map(lambda example: (example[self.source_language], example[self.target_language]))

    @property
    def fingerprint(self):
        full_name = _tfds_builder(self.name, self.data_dir).info.full_name
        return _digest("tfds", full_name, self.split, self.source_language, self.target_language)


def read_text(source: str, target: str) -> TextCorpus:
    """Sentence pairs from text files: one sentence a line, UTF-8, plain or, where the name ends in .gz, compressed.

    All files are read once to check them.

    Args:
        source: path of the source sentences, or several paths with commas between them.
        target: path of their translations; as many paths as `source`, each with as many lines as its source.

    Raises:
        ValueError: if only one side is given, a file is missing, empty, not UTF-8 or not what its .gz says, or if files that
            belong together differ in their number of lines.
    """
    if not source or not target:
        given, missing = ("source", "target") if source else ("target", "source")
        received = f"only {given} files, {source or target}" if source or target else "neither"
        raise ValueError(f"Expected source and target files. Received: {received}. Give the {missing} files too.")
    sources, targets = _split_paths(source), _split_paths(target)
    if len(sources) != len(targets):
        raise ValueError(
            f"Expected as many source files as target files. Received: {len(sources)} ({source}) and {len(targets)} ({target}). "
            "Give them in pairs, in the same order."
        )
    for source_file, target_file in zip(sources, targets):
        lines = _check_file(source_file), _check_file(target_file)
        if lines[0] != lines[1]:
            raise ValueError(
                f"Expected as many sentences in {source_file} as translations in {target_file}. "
                f"Received: {lines[0]} and {lines[1]} lines. Line n of the one has to be the translation of line n of the other."
            )
    return TextCorpus(sources, targets)


def read_synthetic(split: str) -> PairCorpus:
    """The embedded English-German corpus: see `trainer.data.synthetic`."""
    return PairCorpus(tuple(synthetic.generate(split)))


def read_tfds(name: str, split: str, direction: str, data_dir: str | None = None) -> TfdsCorpus:
    """Sentence pairs from a translation set of TensorFlow Datasets, which is downloaded where it is not on disk yet.

    Args:
        name: such as "wmt14_translate/de-en".
        split: a split of the set; "dev" means its "validation".
        direction: source and target language, such as "en-de".
        data_dir: where TensorFlow Datasets keeps its data; by default ~/tensorflow_datasets.

    Raises:
        ValueError: for a name that TensorFlow Datasets doesn't know, languages that the set does not have, or a split that it does
            not have.
    """
    builder = _tfds_builder(name, data_dir)
    languages = tuple(getattr(builder.info.features, "languages", ()))
    pair = tuple(direction.split("-"))
    if len(pair) != 2 or pair[0] == pair[1] or not set(pair) <= set(languages):
        raise ValueError(
            f"Expected a direction between two of the languages of {name}: {', '.join(languages) or 'it has none'}. "
            f"Received: {direction!r}. Write it as source-target, such as 'en-de'."
        )
    builder.download_and_prepare()
    split = _TFDS_SPLITS.get(split, split)
    splits = list(builder.info.splits)
    if split not in splits:
        raise ValueError(f"Expected a split of {name}: {', '.join(splits)}. Received: {split!r}. Choose one of these.")
    return TfdsCorpus(name, split, *pair, data_dir)


def _tfds_builder(name, data_dir):
    import tensorflow_datasets as tfds

    try:
        return tfds.builder(name, data_dir=data_dir)
    except (tfds.core.DatasetNotFoundError, ValueError) as error:
        raise ValueError(
            f"Expected the name of a translation set of TensorFlow Datasets, such as 'wmt14_translate/de-en'. Received: {name!r}. "
            f"TensorFlow Datasets says: {error}"
        ) from error


def _split_paths(paths):
    return tuple(Path(path.strip()) for path in str(paths).split(",") if path.strip())


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
        lines = tf.data.TextLineDataset(str(file), compression_type=compression, buffer_size=_LINES_AT_ONCE)
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
                    f"Expected {file} without a byte order mark. Received: a file that begins with one. "
                    f"Remove it: sed -i '1s/^\\xEF\\xBB\\xBF//' {file}"
                )
            line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Expected UTF-8 in {file}. Received: bytes that are not, {error.object[error.start : error.end]!r}, in line {number}. "
            f"Convert the file: iconv -f ISO-8859-1 -t UTF-8 {file} > {file.stem}.utf8 (or name the encoding that it has)."
        ) from error
    except (gzip.BadGzipFile, EOFError) as error:
        raise ValueError(
            f"Expected {file} to be compressed with gzip, as its name says. Received: a file that is not, or is cut: {error}. "
            "Rename it if it is plain text, or make it again."
        ) from error
    if number == 0:
        raise ValueError(f"Expected {file} to hold one sentence a line. Received: an empty file. Give a file with text.")
    return number


def _digest(*parts):
    return hashlib.sha256(repr(parts).encode()).hexdigest()
