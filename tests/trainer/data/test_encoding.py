"""Tests of encoded corpora and their cache."""

import os
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf
from pair_corpus import PairCorpus

from trainer.data import encoding
from trainer.data.corpus import TEXT, Corpus
from trainer.data.encoding import IdSequences, encode_pairs
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.data.tokenizer import Tokenizers


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


class Letters:
    """A tokenizer without a vocabulary: ids are code points, and EOS."""

    fingerprint, unk_id, byte_ids = "letters", -1, range(0)

    def tokenize(self, strings):
        return tf.strings.unicode_decode(tf.strings.join([strings, "\x01"]), "UTF-8")

    def count_normalized(self, texts):
        return 0


LETTERS = Tokenizers.shared(Letters())


def sequences(side):
    return [ids.tolist() for ids in np.split(side.ids, side.offsets[1:-1])]


@pytest.mark.parametrize("chunk_pairs", [4096, 7])
def test_encode_pairs_equals_the_tokenizer(synthetic_pairs, tokenizer, monkeypatch, chunk_pairs):
    monkeypatch.setattr(encoding, "_PAIRS_PER_CALL", chunk_pairs)
    pairs = encode_pairs(PairCorpus(synthetic_pairs), Tokenizers.shared(tokenizer))
    assert len(pairs) == 211
    lengths = []
    for side, texts in zip((pairs.sources, pairs.targets), zip(*synthetic_pairs)):
        expected = tokenizer.tokenize(tf.constant(texts)).to_list()
        assert sequences(side) == expected
        assert isinstance(side.ids, np.memmap) and isinstance(side.offsets, np.memmap)
        lengths.append(list(map(len, expected)))
    assert pairs.lengths.tolist() == list(map(max, *lengths))


def test_texts_have_one_side(synthetic_pairs, tokenizer, tmp_path):
    texts = PairCorpus(tuple((target,) for _, target in synthetic_pairs), TEXT)
    expected = encode_pairs(PairCorpus(synthetic_pairs), Tokenizers.shared(tokenizer))
    for _ in range(2):  # The second one reads the cache.
        found = encode_pairs(texts, Tokenizers.shared(tokenizer), tmp_path)
        assert found.sources is None and [*found.inputs] == ["targets"]
        assert sequences(found.targets) == sequences(expected.targets)
        assert found.counts == {"text": expected.counts["target"]}
    (cache,) = tmp_path.iterdir()
    assert sorted(x.name for x in cache.iterdir()) == ["report.json", "text.ids", "text.offsets"]


def test_cache_is_used_until_the_corpus_changes(synthetic_pairs, tokenizer, tmp_path):
    readings, cache = [], tmp_path / "cache"
    encode = lambda pairs, tokenizer: encode_pairs(
        CountedCorpus(pairs, readings), Tokenizers.shared(tokenizer), cache_dir=cache
    )
    first = encode(synthetic_pairs, tokenizer)
    again = encode(synthetic_pairs, tokenizer)
    assert readings == [211]
    assert sequences(again.targets) == sequences(first.targets)
    changed = encode(synthetic_pairs[:3], tokenizer)
    assert readings == [211, 3]
    (kept,) = cache.iterdir()
    assert (kept / "source.ids").stat().st_size == changed.sources.ids.nbytes


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("target.ids", lambda file: os.truncate(file, 400)),
        ("source.ids", lambda file: os.truncate(file, 401)),
        ("source.ids", lambda file: file.write_bytes(bytes(file.stat().st_size))),
        ("source.offsets", lambda file: file.unlink()),
        ("target.offsets", lambda file: os.truncate(file, 80)),
        ("target.offsets", lambda file: file.write_bytes(bytes(file.stat().st_size))),
        ("report.json", lambda file: os.truncate(file, 20)),
        ("report.json", lambda file: file.write_text("{}")),
    ],
)
def test_damaged_cache_is_written_again(synthetic_pairs, tokenizer, tmp_path, caplog, name, damage):
    corpus, tokenizers = PairCorpus(synthetic_pairs[:23]), Tokenizers.shared(tokenizer)
    expected = encode_pairs(corpus, tokenizers)
    encode_pairs(corpus, tokenizers, tmp_path)
    (directory,) = tmp_path.iterdir()
    damage(directory / name)
    found = encode_pairs(corpus, tokenizers, tmp_path)
    assert f"Encoding the text again, because {directory} is damaged: " in caplog.text
    assert [sequences(side) for side in (found.sources, found.targets)] == [
        sequences(side) for side in (expected.sources, expected.targets)
    ]
    assert found.counts == expected.counts
    caplog.clear()
    encode_pairs(corpus, tokenizers, tmp_path)
    assert not caplog.text


def test_cache_depends_on_the_vocabulary_of_each_side(synthetic_pairs, tokenizer, tmp_path):
    english = [source for source, _ in synthetic_pairs]
    one, other = tokenizer, SentencePieceTokenizer.train(english, vocab_size=200)
    corpus, first = PairCorpus(synthetic_pairs), None
    for sides in ((one, other), (other, one), (one, one), (other, other), (one, other)):
        pairs = encode_pairs(corpus, Tokenizers(*sides), tmp_path)
        for side, each, texts in zip((pairs.sources, pairs.targets), sides, zip(*synthetic_pairs)):
            assert sequences(side) == each.tokenize(texts).to_list()
        (directory,) = tmp_path.iterdir()
        first = first or directory
    assert directory == first


def test_counts_of_unknown_and_normalized_text(tokenizer):
    pairs = (("the ½ Ω dog", "Ω"), ("the  dog ", "the\u00a0dog"))
    sources, targets = encode_pairs(PairCorpus(pairs), Tokenizers.shared(tokenizer)).counts.values()
    assert (sources.lines, sources.unknown, sources.normalized) == (2, 2, 1)
    assert (targets.lines, targets.unknown, targets.normalized) == (2, 1, 1)
    assert targets.tokens == 2 + len(tokenizer.tokenize(["the dog"])[0]) - 1
    assert (sources.byte_pieces, targets.byte_pieces) == (0, 0)


def test_partly_written_ids_are_removed(synthetic_pairs, tmp_path):
    class BrokenCorpus(CountedCorpus):
        def __iter__(self):
            yield from self.pairs
            raise OSError("disk error")

    with pytest.raises(OSError, match="disk error"):
        encode_pairs(BrokenCorpus(synthetic_pairs, []), LETTERS, cache_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_memory_does_not_depend_on_corpus_size(synthetic_pairs, monkeypatch):
    @dataclass(frozen=True)
    class Repeated(CountedCorpus):
        def __iter__(self):
            for _ in range(self.readings[0]):
                yield from self.pairs

    def peak(times):
        tracemalloc.start()
        pairs = encode_pairs(Repeated(synthetic_pairs, [times]), LETTERS)
        try:
            assert len(pairs) == times * len(synthetic_pairs)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    monkeypatch.setattr(encoding, "_PAIRS_PER_CALL", 97)
    peak(3)
    assert peak(70) < 2.5 * peak(7)


def test_padded_sequences():
    side = IdSequences(np.array([5, 1, 7, 8, 9, 1, 1], "int32"), np.array([0, 2, 6, 7]))
    assert len(side) == 3
    assert side.lengths.tolist() == [2, 4, 1]
    assert side.lengths_of(np.array([2, 1, 1])).tolist() == [1, 4, 4]
    assert side.padded(np.array([2, 0])).tolist() == [[1, 0], [5, 1]]
    padded = side.padded(np.array([1, 2, 0]), width=5)
    assert padded.tolist() == [[7, 8, 9, 1, 0], [1, 0, 0, 0, 0], [5, 1, 0, 0, 0]]
    assert padded.dtype == np.int32


def test_empty_corpus_raises():
    message = "Expected a corpus with sentence pairs. Received: an empty corpus. Use files with"
    with pytest.raises(ValueError, match=f"{message} text."):
        encode_pairs(PairCorpus(()), LETTERS)


def test_spaces_around_a_sentence_have_no_ids():
    """SentencePiece ignores them. tensor2tensor removes them when it reads lines."""
    pairs = encode_pairs(PairCorpus(((" \t", "a b "), ("x", "\rc"))), LETTERS)
    assert pairs.sources.lengths.tolist() == [1, 2]
    assert sequences(pairs.targets) == [[97, 32, 98, 1], [99, 1]]
