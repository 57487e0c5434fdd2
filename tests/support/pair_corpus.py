"""Corpora for tests of the trainer."""

from dataclasses import dataclass

from trainer.data.corpus import PAIR, Corpus, digest


@dataclass(frozen=True)
class PairCorpus(Corpus):
    """A corpus in memory."""

    pairs: tuple[tuple[str, ...], ...]
    sides: tuple[str, ...] = PAIR

    def __iter__(self):
        return iter(self.pairs)

    @property
    def fingerprint(self):
        return digest("pairs", *self.pairs)
