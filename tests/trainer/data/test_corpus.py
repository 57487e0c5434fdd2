"""Tests of corpora in memory."""

from examples.synthetic_corpus import generate
from trainer.data.corpus import PairCorpus

PAIRS = tuple(generate("dev", size=13))


def test_pair_corpus_iterates_over_pairs_and_sides():
    corpus = PairCorpus(PAIRS)
    assert list(corpus) == list(corpus) == list(PAIRS)
    assert list(corpus.sources()) == [source for source, _ in PAIRS]
    assert list(corpus.targets()) == [target for _, target in PAIRS]
    assert list(corpus.sentences())[:4] == [*PAIRS[0], *PAIRS[1]]


def test_fingerprint_depends_on_the_pairs():
    corpus = PairCorpus(PAIRS)
    assert corpus.fingerprint == PairCorpus(PAIRS).fingerprint
    assert corpus.fingerprint != PairCorpus(PAIRS[1:]).fingerprint
