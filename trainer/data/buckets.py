"""Length buckets, and the rules by which training skips sentence pairs."""

from dataclasses import dataclass

import numpy as np

from trainer.data.encoding import EncodedPairs

# As in tensor2tensor's `data_reader._bucket_boundaries`.
_SHORTEST_BUCKET = 8
_BUCKET_GROWTH = 1.1
_PAIRS_PER_PASS = 1 << 16  # Pairs whose lengths are held in memory together.


def bucket_boundaries(max_length: int) -> np.ndarray:
    """Returns the maximum length of every bucket; the last one is `max_length`.

    Example:

    >>> bucket_boundaries(25).tolist()
    [8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 24, 25]
    """
    boundaries, boundary = [], _SHORTEST_BUCKET
    while boundary < max_length:
        boundaries.append(boundary)
        boundary = max(boundary + 1, int(boundary * _BUCKET_GROWTH))
    return np.array(boundaries + [max_length])


def is_too_long(sources: np.ndarray, targets: np.ndarray, max_length: int) -> np.ndarray:
    """Returns whether each pair has more than `max_length` ids on a side, from both lengths."""
    return np.maximum(sources, targets) > max_length


def is_blank(sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Returns whether each pair has a side that consists of EOS only, from both lengths."""
    return np.minimum(sources, targets) < 2


@dataclass(frozen=True)
class LengthReport:
    """Numbers of pairs that training uses and skips. `str` returns a summary.

    `buckets` is the number of buckets that have a pair to train on.
    """

    pairs: int
    too_long: int
    blank: int
    max_length: int
    buckets: int

    @property
    def used(self) -> int:
        """Number of pairs to train on."""
        return self.pairs - self.too_long - self.blank

    def __str__(self):
        return (
            f"{self.used} of {self.pairs} pairs are used. Skipped: {self.too_long} longer than "
            f"{self.max_length} tokens, {self.blank} with a blank side."
        )


def report_lengths(pairs: EncodedPairs, max_length: int) -> LengthReport:
    """Returns the numbers of pairs that training uses and skips."""
    boundaries, occupied = bucket_boundaries(max_length), set()
    too_long = blank = 0
    for start in range(0, len(pairs), _PAIRS_PER_PASS):
        rows = np.arange(start, min(start + _PAIRS_PER_PASS, len(pairs)))
        sides = pairs.sources.lengths_of(rows), pairs.targets.lengths_of(rows)
        are_too_long, are_blank = is_too_long(*sides, max_length), is_blank(*sides)
        too_long += int(are_too_long.sum())
        blank += int((are_blank & ~are_too_long).sum())
        used = np.maximum(*sides)[~are_too_long & ~are_blank]
        occupied.update(np.searchsorted(boundaries, used).tolist())
    return LengthReport(len(pairs), too_long, blank, max_length, len(occupied))
