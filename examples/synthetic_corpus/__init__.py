"""A synthetic corpus of English-German sentence pairs.

The sentences are made by a small grammar from a few hundred real words; nobody
ever wrote them. Translating them still needs what the language pair is known
for: the verb second in German main clauses and last in subordinate ones,
separable prefixes, agreement in gender, number and case, verbs that take the
dative. Every English sentence has exactly one translation, and every split draws
from the same grammar. Sentences have up to four clauses; those of `test_longer`
have three or four, and more words than any sentence of the other splits.
"""

import random
import zlib

from examples.synthetic_corpus.sentence_sampler import SentenceSampler

SPLITS = {"train": 20_000, "dev": 500, "test": 1_000, "test_longer": 500}
MIN_WORDS = 4
MAX_WORDS = 16
MAX_WORDS_LONGER = 30


def generate(split, size=None, seed=0):
    """Makes the sentence pairs of a split, the same ones every time.

    No English sentence is in two splits, whatever the sizes and the seeds, nor
    twice in one. The shortest sentence of `test_longer` has more words than the
    longest of the others. A smaller size is the beginning of a larger one.

    Args:
        split: a key of `SPLITS`: train, dev, test or test_longer.
        size: number of pairs; by default the split's own, `SPLITS[split]`.
        seed: integer that chooses the sentences.

    Returns:
        A list of (English, German) strings.

    Raises:
        ValueError: if there is no such split or size is below 1.

    Example:

    >>> len(generate("dev"))
    500
    >>> generate("dev", size=2) == generate("dev", size=4)[:2]
    True
    """
    if split not in SPLITS:
        raise ValueError(
            f"Expected split to be one of {', '.join(SPLITS)}. Received: {split!r}. "
            "Choose one of these."
        )
    size = SPLITS[split] if size is None else size
    if size < 1:
        raise ValueError(
            f"Expected size to be at least 1. Received: {size}. Leave it out for the split's own "
            f"size, {SPLITS[split]}."
        )
    sampler = SentenceSampler(random.Random(f"{seed} {split}"))
    draw = sampler.long_sentence if split == "test_longer" else sampler.sentence
    pairs = {}
    while len(pairs) < size:
        english, german = draw()
        if _split_of(english) == split:
            pairs[english] = german
    return list(pairs.items())


def _split_of(english):
    """The one split in which this sentence may stand, or None."""
    words = english.count(" ") + 1
    if words > MAX_WORDS:
        return "test_longer" if words <= MAX_WORDS_LONGER else None
    if words < MIN_WORDS:
        return None
    bucket = zlib.crc32(english.encode()) % 10
    return ("dev", "test")[bucket] if bucket < 2 else "train"
