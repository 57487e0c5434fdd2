"""Tests of encoded corpora and their cache."""

import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf

from trainer.data import encoding
from trainer.data.corpus import Corpus, PairCorpus
from trainer.data.encoding import IdSequences, encode_pairs
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer


@dataclass(frozen=True)
class CountedCorpus(Corpus):
    """A corpus in memory that records every iteration in `readings`."""

    pairs: tuple
    readings: list

    def __iter__(self):
        self.readings.append(len(self.pairs))
        return iter(self.pairs)

    @property
    def fingerprint(self):
        return str(hash(self.pairs))


def sequences(side):
    return [
        side.ids[start:stop].tolist() for start, stop in zip(side.offsets[:-1], side.offsets[1:])
    ]


def tokenized(tokenizer, texts):
    return tokenizer.tokenize(tf.constant(list(texts))).to_list()


@pytest.mark.parametrize("chunk_pairs", [4096, 7])
def test_encode_pairs_equals_the_tokenizer(synthetic_pairs, tokenizer, monkeypatch, chunk_pairs):
    monkeypatch.setattr(encoding, "_PAIRS_PER_CALL", chunk_pairs)
    pairs = encode_pairs(PairCorpus(synthetic_pairs), tokenizer)
    sources, targets = zip(*synthetic_pairs)
    assert len(pairs) == 211
    assert sequences(pairs.sources) == tokenized(tokenizer, sources)
    assert sequences(pairs.targets) == tokenized(tokenizer, targets)
    expected = [
        max(len(a), len(b))
        for a, b in zip(tokenized(tokenizer, sources), tokenized(tokenizer, targets))
    ]
    assert pairs.lengths.tolist() == expected


def test_cache_is_used_until_corpus_or_tokenizer_change(synthetic_pairs, tokenizer, tmp_path):
    readings = []
    first = encode_pairs(
        CountedCorpus(synthetic_pairs, readings), tokenizer, cache_dir=tmp_path / "cache"
    )
    again = encode_pairs(
        CountedCorpus(synthetic_pairs, readings), tokenizer, cache_dir=tmp_path / "cache"
    )
    assert readings == [211]
    assert sequences(again.targets) == sequences(first.targets)
    encode_pairs(
        CountedCorpus(synthetic_pairs[:3], readings), tokenizer, cache_dir=tmp_path / "cache"
    )
    other = SentencePieceTokenizer.train(PairCorpus(synthetic_pairs).sentences(), vocab_size=211)
    changed = encode_pairs(
        CountedCorpus(synthetic_pairs, readings), other, cache_dir=tmp_path / "cache"
    )
    assert readings == [211, 3, 211]
    assert sequences(changed.targets) != sequences(first.targets)


def test_partly_written_ids_are_removed(synthetic_pairs, tokenizer, tmp_path):
    class BrokenCorpus(CountedCorpus):
        def __iter__(self):
            yield from self.pairs
            raise OSError("disk error")

    with pytest.raises(OSError, match="disk error"):
        encode_pairs(BrokenCorpus(synthetic_pairs, []), tokenizer, cache_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_ids_are_memory_mapped(synthetic_pairs, tokenizer):
    pairs = encode_pairs(PairCorpus(synthetic_pairs), tokenizer)
    assert all(
        isinstance(side.ids, np.memmap) and isinstance(side.offsets, np.memmap)
        for side in (pairs.sources, pairs.targets)
    )


def test_memory_does_not_depend_on_corpus_size(synthetic_pairs, monkeypatch):
    class Letters:
        """A tokenizer without a vocabulary: ids are code points."""

        fingerprint = "letters"

        def tokenize(self, strings):
            return tf.strings.unicode_decode(strings, "UTF-8")

    @dataclass(frozen=True)
    class Repeated(CountedCorpus):
        def __iter__(self):
            for _ in range(self.readings[0]):
                yield from self.pairs

    def peak(times):
        tracemalloc.start()
        pairs = encode_pairs(Repeated(synthetic_pairs, [times]), Letters())
        try:
            assert len(pairs) == times * len(synthetic_pairs)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    monkeypatch.setattr(encoding, "_PAIRS_PER_CALL", 97)
    peak(3)
    assert peak(140) < 2.5 * peak(7)


def test_padded_sequences():
    side = IdSequences(np.array([5, 1, 7, 8, 9, 1, 1], "int32"), np.array([0, 2, 6, 7]))
    assert len(side) == 3
    assert side.lengths.tolist() == [2, 4, 1]
    assert side.lengths_of(np.array([2, 1, 1])).tolist() == [1, 4, 4]
    assert side.padded(np.array([2, 0])).tolist() == [[1, 0], [5, 1]]
    padded = side.padded(np.array([1, 2, 0]), width=5)
    assert padded.tolist() == [[7, 8, 9, 1, 0], [1, 0, 0, 0, 0], [5, 1, 0, 0, 0]]
    assert padded.dtype == np.int32


def test_empty_corpus_raises(tokenizer):
    with pytest.raises(
        ValueError,
        match=(
            "Expected a corpus with sentence pairs. Received: an empty corpus. Use files with text."
        ),
    ):
        encode_pairs(PairCorpus(()), tokenizer)


def test_ids_of_another_corpus_are_removed(synthetic_pairs, tokenizer, tmp_path):
    for pairs in (synthetic_pairs[:3], synthetic_pairs):
        encoded = encode_pairs(PairCorpus(pairs), tokenizer, cache_dir=tmp_path)
    (kept,) = tmp_path.iterdir()
    assert (kept / "source.ids").stat().st_size == encoded.sources.ids.nbytes


def test_spaces_around_a_sentence_have_no_ids():
    """SentencePiece ignores them. tensor2tensor removes them when it reads lines."""

    class Letters:
        fingerprint = "letters"

        def tokenize(self, strings):
            return tf.strings.unicode_decode(strings, "UTF-8")

    pairs = encode_pairs(PairCorpus(((" \t", "a b "), ("x", "\rc"))), Letters())
    assert pairs.sources.lengths.tolist() == [0, 1]
    assert sequences(pairs.targets) == [[97, 32, 98], [99]]
