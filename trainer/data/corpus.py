"""Corpora: of sentence pairs in memory or from TensorFlow Datasets, imported on first use."""

import abc
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BATCH_SIZE = 1024
_HASHED_BYTES = 1 << 26  # Of larger splits, only sizes are compared: hashing takes seconds.
_SPLITS = {"dev": "validation"}
# Names of the sides of a corpus: of sentence pairs, and of the text of a language model.
PAIR, TEXT = ("source", "target"), ("text",)


class Corpus(abc.ABC):
    """Abstract base class of corpora: pairs of a source sentence and its translation.

    Every iteration yields the same pairs of str, in the same order. The corpus of a language model
    has one side: it yields tuples of one str, which is source and target in the methods.
    """

    sides: tuple[str, ...] = PAIR

    @abc.abstractmethod
    def __iter__(self) -> Iterator[tuple[str, ...]]: ...

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Cache key for data derived from the corpus. It changes if the pairs change."""

    def sources(self) -> Iterator[str]:
        return (example[0] for example in self)

    def targets(self) -> Iterator[str]:
        return (example[-1] for example in self)

    def sentences(self) -> Iterator[str]:
        """Yields the sentences of all sides, to train a joint vocabulary."""
        return (sentence for example in self for sentence in example)


def digest(*parts) -> str:
    """Returns a hash of the values' `repr`."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


class MissingSplitError(ValueError):
    """A translation set does not have the requested split."""


@dataclass(frozen=True)
class TfdsCorpus(Corpus):
    """A corpus in TensorFlow Datasets. Create it with `read_tfds`, which prepares the data."""

    name: str
    split: str
    source_language: str
    target_language: str
    data_dir: str | None = None

    def __iter__(self):
        examples = _builder(self.name, self.data_dir).as_dataset(
            split=self.split, shuffle_files=False
        )
        for batch in examples.batch(_BATCH_SIZE).prefetch(1).as_numpy_iterator():
            for pair in zip(batch[self.source_language], batch[self.target_language]):
                texts = (text.decode("utf-8", errors="replace") for text in pair)
                # As in text files, a sentence is a line.
                yield tuple(text.replace("\r", " ").replace("\n", " ") for text in texts)

    @property
    def fingerprint(self):
        info = _builder(self.name, self.data_dir).info
        languages = self.source_language, self.target_language
        # The same name and version may stand for other text, if users prepare their own sets.
        split = info.splits[self.split]
        contents = [split.num_bytes, *split.shard_lengths]
        if split.num_bytes <= _HASHED_BYTES:
            contents += [
                hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in split.filepaths
            ]
        return digest(digest("tfds", info.full_name, self.split, *languages), *contents)


def read_tfds(
    name: str, split: str, direction: str | None = None, data_dir: str | None = None
) -> TfdsCorpus:
    """Returns the sentence pairs of a translation set of TensorFlow Datasets.

    The set is downloaded and prepared unless it is on disk.

    Args:
        name: name of the set, such as "wmt14_translate/de-en".
        split: a split of the set; "dev" is an alias of "validation".
        direction: source and target language; "en-de" by default.
        data_dir: data folder of TensorFlow Datasets; by default $TFDS_DATA_DIR or
            ~/tensorflow_datasets.

    Raises:
        ValueError: if there is no such set, or it does not have these languages, or can't be
            prepared. If it does not have the split, a `MissingSplitError`.
    """
    builder, pair = _translation_builder(name, direction, data_dir)
    try:
        builder.download_and_prepare()
    except OSError as error:
        raise ValueError(
            f"Expected {name} in {builder.data_dir}, or to download it. Received: {error}. Copy a "
            "prepared set to this folder, or give its folder with --data_dir."
        ) from error
    split = _SPLITS.get(split, split)
    if split not in builder.info.splits:
        known = ", ".join(builder.info.splits)
        raise MissingSplitError(f"Expected a split of {name}: {known}. Received: {split!r}.")
    return TfdsCorpus(name, split, *pair, data_dir)


def describe_missing(name: str, direction: str | None, data_dir: str | None) -> str | None:
    """Returns a line about a set that `read_tfds` would download, or None if it is on disk."""
    builder, _ = _translation_builder(name, direction, data_dir)
    if Path(builder.data_dir).exists():
        return None
    size = builder.info.download_size
    size = f"{int(size) / 2**30:.2f} GiB" if size else "TensorFlow Datasets records no size"
    return f"Data: {name} is not in {builder.data_dir}. A run downloads it ({size})."


def _translation_builder(name, direction, data_dir):
    """Returns the builder of a translation set, and the source and target language."""
    builder, direction = _builder(name, data_dir), direction or "en-de"
    languages = tuple(getattr(builder.info.features, "languages", ()))
    pair = tuple(direction.split("-"))
    if len(pair) != 2 or pair[0] == pair[1] or not set(pair) <= set(languages):
        raise ValueError(
            f"Expected a direction between two of the languages of {name}: "
            f"{', '.join(languages) or 'it has none'}. "
            f"Received: {direction!r}. Write it as source-target, such as 'en-de'."
        )
    return builder, pair


def _builder(name, data_dir):
    import tensorflow_datasets as tfds

    try:
        return tfds.builder(name, data_dir=data_dir)
    except (tfds.core.DatasetNotFoundError, ValueError) as error:
        raise ValueError(
            "Expected the name of a translation set of TensorFlow Datasets, such as "
            f"'wmt14_translate/de-en'. Received: {name!r}. The sets are listed at "
            "https://www.tensorflow.org/datasets/catalog. For text files, leave out --data."
        ) from error
