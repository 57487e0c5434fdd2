"""What a corpus is: pairs of sentences, as Python strings and as a dataset."""

import abc
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import tensorflow as tf


class Corpus(abc.ABC):
    """Pairs of a source sentence and its translation.

    Iterating gives pairs of str, in order, as often as one likes.
    """

    @abc.abstractmethod
    def __iter__(self) -> Iterator[tuple[str, str]]: ...

    @abc.abstractmethod
    def dataset(self) -> tf.data.Dataset:
        """The pairs as string scalars, UTF-8."""

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Differs if the pairs may differ: derived data can be cached under this
        name.
        """

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
        return digest("pairs", *self.pairs)


def digest(*parts) -> str:
    """A name for what these values describe."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()
