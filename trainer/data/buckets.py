"""Lengths of sentence pairs: which pairs training uses, and which share a bucket."""

from dataclasses import dataclass

import numpy as np

from trainer.data.encoding import EncodedPairs

_SHORTEST_BUCKET = 8
_BUCKET_GROWTH = 1.1
_PAIRS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class LengthReport:
    """How many pairs training uses, and why not the others: `print` it."""

    pairs: int
    too_long: int
    blank: int
    max_length: int

    @property
    def used(self) -> int:
        return self.pairs - self.too_long - self.blank

    def __str__(self):
        return (
            f"{self.used} of {self.pairs} pairs are used. Skipped: {self.too_long} longer than "
            f"{self.max_length} tokens, {self.blank} with a blank side."
        )


def report_lengths(pairs: EncodedPairs, max_length: int) -> LengthReport:
    """Counts the pairs that `training_batches` leaves out: with more than `max_length` ids on a
    side, or only EOS.
    """
    too_long = blank = 0
    for start in range(0, len(pairs), _PAIRS_AT_ONCE):
        rows = np.arange(start, min(start + _PAIRS_AT_ONCE, len(pairs)))
        sources, targets = pairs.sources.lengths_of(rows), pairs.targets.lengths_of(rows)
        are_too_long = is_too_long(sources, targets, max_length)
        too_long += int(are_too_long.sum())
        blank += int((is_blank(sources, targets) & ~are_too_long).sum())
    return LengthReport(len(pairs), too_long, blank, max_length)


def is_too_long(sources: np.ndarray, targets: np.ndarray, max_length: int) -> np.ndarray:
    """Of which pairs a side has more than `max_length` ids, given the lengths of both sides."""
    return np.maximum(sources, targets) > max_length


def is_blank(sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Of which pairs a side has only EOS."""
    return np.minimum(sources, targets) < 2


def bucket_boundaries(max_length: int) -> np.ndarray:
    """The longest length of every bucket, the last one's being `max_length`.

    Reference: tensor2tensor `data_reader._bucket_boundaries`, with 8 and 1.1.

    Example:

    >>> bucket_boundaries(25).tolist()
    [8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 24, 25]
    """
    boundaries, boundary = [], _SHORTEST_BUCKET
    while boundary < max_length:
        boundaries.append(boundary)
        boundary = max(boundary + 1, int(boundary * _BUCKET_GROWTH))
    return np.array(boundaries + [max_length])
