"""A synthetic corpus of English-German sentence pairs.

A small grammar generates the sentences from a few hundred real words. They have typical
difficulties of the language pair: the place of the German verb, separable prefixes, agreement of
gender, number and case, and verbs with the dative. Every English sentence has exactly one
translation. The sentences of `test_longer` have three or four clauses, and more words than any
sentence of the other splits.
"""

import random
import zlib

from examples.synthetic_corpus.sentences import SentenceSampler

SPLITS = {"train": 20_000, "dev": 500, "test": 1_000, "test_longer": 500}


def generate(split, size=None, seed=0):
    """Returns the (English, German) pairs of a split, which are the same in every call.

    No English sentence occurs twice in a split, or in two splits of any sizes and seeds.
    A smaller size gives the first pairs of a larger size. The default is `SPLITS[split]`.

    Raises:
        ValueError: if `split` is unknown or `size` is below 1.

    Example:

    >>> from examples.synthetic_corpus import generate
    >>> generate("dev", size=2) == generate("dev", size=4)[:2]
    True
    """
    if split not in SPLITS:
        raise ValueError(f"Expected split to be one of {', '.join(SPLITS)}. Received: {split!r}.")
    size = SPLITS[split] if size is None else size
    if size < 1:
        raise ValueError(f"Expected size to be at least 1. Received: {size}. Omit it for all.")
    sampler, pairs = SentenceSampler(random.Random(f"{seed} {split}")), {}
    while len(pairs) < size:
        english, german = sampler.sentence("several clauses" if split == "test_longer" else None)
        if _split_of(english) == split:
            pairs[english] = german
    return list(pairs.items())


def _split_of(english):
    """Returns the only split that may contain this sentence, or None."""
    words = english.count(" ") + 1
    if words > 16:
        return "test_longer" if words <= 30 else None
    split = {0: "dev", 1: "test"}.get(zlib.crc32(english.encode()) % 10, "train")
    return split if words >= 4 else None
