"""Fixtures: a vocabulary, and encoded pairs of given lengths."""

import numpy as np
import pytest

from examples.synthetic_corpus import generate
from trainer.data.encoding import EncodedPairs, IdSequences
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer


@pytest.fixture(scope="session")
def synthetic_pairs():
    """Returns 211 sentence pairs of the synthetic corpus."""
    return tuple(generate("train", size=211))


@pytest.fixture(scope="session")
def tokenizer(synthetic_pairs):
    """Returns a tokenizer with a joint vocabulary of 307 pieces, trained on `synthetic_pairs`."""
    sentences = (sentence for pair in synthetic_pairs for sentence in pair)
    return SentencePieceTokenizer.train(sentences, vocab_size=307)


@pytest.fixture(scope="session")
def make_pairs():
    """Returns `make_pairs(sources, targets, end_in_eos=True)`: `EncodedPairs` of these lengths.

    Pair i consists of the id i + 10.
    """

    def side(lengths, end_in_eos):
        ids = np.repeat(np.arange(10, 10 + len(lengths), dtype="int32"), lengths)
        offsets = np.cumsum([0, *lengths])
        if end_in_eos:
            ids[offsets[1:] - 1] = 1
        return IdSequences(ids, offsets)

    return lambda sources, targets, end_in_eos=True: EncodedPairs(
        side(sources, end_in_eos), side(targets, end_in_eos)
    )


@pytest.fixture
def pairs(make_pairs, rng):
    """Returns 307 pairs with 2 to 41 ids per side."""
    lengths = rng.integers(2, 37, size=307)
    return make_pairs(lengths, lengths + rng.integers(0, 6, size=307))
