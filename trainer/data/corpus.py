"""Corpora of sentence pairs, which can be iterated any number of times."""

import abc
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass


class Corpus(abc.ABC):
    """Abstract base class of corpora: pairs of a source sentence and its translation.

    Every iteration yields the same pairs of str, in the same order.
    """

    @abc.abstractmethod
    def __iter__(self) -> Iterator[tuple[str, str]]: ...

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Cache key for data derived from the corpus. It changes if the pairs change."""

    @property
    def earlier_fingerprint(self) -> str | None:
        """Cache key of caches that earlier versions of this program wrote, or None."""
        return None

    def sources(self) -> Iterator[str]:
        """Yields the source sentences, in order."""
        return (source for source, _ in self)

    def targets(self) -> Iterator[str]:
        """Yields the translations, in order."""
        return (target for _, target in self)

    def sentences(self) -> Iterator[str]:
        """Yields the sentences of both languages, to train a joint vocabulary."""
        return (sentence for pair in self for sentence in pair)


@dataclass(frozen=True)
class PairCorpus(Corpus):
    """A corpus in memory."""

    pairs: tuple[tuple[str, str], ...]

    def __iter__(self):
        return iter(self.pairs)

    @property
    def fingerprint(self):
        return digest("pairs", *self.pairs)


def digest(*parts) -> str:
    """Returns a hash of the values' `repr`."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()
