"""Batches of sentence pairs of like length, in an order that the seed and the number of the step decide."""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from trainer.data.encoding import EncodedPairs

_SHORTEST_BUCKET = 8
_BUCKET_GROWTH = 1.1
_POOL = 16  # batches of a bucket among which pairs are sorted, so that the shorter sides are alike too
_PREFETCHED = 8


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
            f"{self.used} of {self.pairs} pairs are used: {self.too_long} are longer than {self.max_length} tokens, "
            f"{self.blank} have a blank side."
        )


def report_lengths(pairs: EncodedPairs, max_length: int) -> LengthReport:
    """Counts the pairs that `training_batches` leaves out: with more than `max_length` ids on a side, or only EOS."""
    too_long, blank = _too_long(pairs, max_length), _blank(pairs)
    return LengthReport(len(pairs), int(too_long.sum()), int((blank & ~too_long).sum()), max_length)


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


def training_batches(
    pairs: EncodedPairs, batch_tokens: int, max_length: int, seed: int, start_step: int = 0, pad_to_boundary: bool = False
) -> tf.data.Dataset:
    """Endless batches of pairs of like length, every epoch in another order.

    A pair's length is that of its longer side with EOS. A batch of the bucket of length n has `batch_tokens // n` pairs; the few that
    are left over in a bucket join the next longer one, so that only the last batch of an epoch is smaller. Batch number n depends
    on the pairs, the settings and the seed alone, so that a run can go on at any step.

    Args:
        pairs: the encoded corpus.
        batch_tokens: tokens of the longer side in a batch, padding included, at most.
        max_length: longest side of a pair, in ids with EOS. Longer pairs are left out, as are pairs with a blank side:
            `report_lengths` counts them.
        seed: decides the order.
        start_step: number of the first batch.
        pad_to_boundary: pad both sides to the bucket's length, and the last batch of an epoch with rows of padding, so that there
            are only as many shapes as buckets, as XLA wants it. By default batches are as wide as their longest sentences.

    Returns:
        A dataset of `({"inputs": int32 [B, S], "targets": int32 [B, T]}, targets, weights float32 [B, T])`, weights being 1 for
        tokens and 0 for padding.

    Raises:
        ValueError: if no pair is left, or a bucket's length is more than `batch_tokens`.
    """
    if start_step < 0:
        raise ValueError(f"Expected start_step to be at least 0. Received: {start_step}.")
    plan = _TrainingPlan(pairs, batch_tokens, max_length, seed)

    def make(step):
        rows, boundary = plan.batch(int(step))
        if not pad_to_boundary:
            return pairs.sources.padded(rows), pairs.targets.padded(rows)
        missing = ((0, batch_tokens // boundary - len(rows)), (0, 0))
        return tuple(np.pad(side.padded(rows, boundary), missing) for side in (pairs.sources, pairs.targets))

    return _dataset(tf.data.Dataset.counter(start_step), make)


def evaluation_batches(pairs: EncodedPairs, batch_tokens: int) -> tf.data.Dataset:
    """All pairs once, in order, in batches of at most `batch_tokens` tokens of the longer side, padding included.

    A pair that is longer than `batch_tokens` is a batch of its own.

    Returns:
        A dataset as of `training_batches`, of known cardinality.
    """
    ends, start, longest = [], 0, 0
    for row, length in enumerate(pairs.lengths):
        longest = max(longest, length)
        if longest * (row + 1 - start) > batch_tokens and row > start:
            ends.append(row)
            start, longest = row, length
    ends.append(len(pairs))
    starts = [0, *ends]

    def make(batch):
        rows = np.arange(starts[batch], ends[batch])
        return pairs.sources.padded(rows), pairs.targets.padded(rows)

    return _dataset(tf.data.Dataset.range(len(ends)), make)


class _TrainingPlan:
    """Which pairs form batch number n."""

    def __init__(self, pairs, batch_tokens, max_length, seed):
        self.source_lengths, self.target_lengths = pairs.sources.lengths, pairs.targets.lengths
        self.used = np.flatnonzero(~_too_long(pairs, max_length) & ~_blank(pairs))
        self.boundaries = bucket_boundaries(max_length)
        self.batch_tokens = batch_tokens
        self.seed = seed
        self._check(pairs, max_length)
        self.epoch = 0, self._make_epoch(0)
        self.batches_per_epoch = len(self.epoch[1])

    def batch(self, step):
        """The numbers of the pairs, and the boundary of the bucket."""
        epoch, number = divmod(step, self.batches_per_epoch)
        made, batches = self.epoch
        if made != epoch:
            batches = self._make_epoch(epoch)
            self.epoch = epoch, batches
        return batches[number]

    def _make_epoch(self, epoch):
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(self.used)
        buckets = np.searchsorted(self.boundaries, np.maximum(self.source_lengths[order], self.target_lengths[order]))
        batches, rest = [], order[:0]
        for bucket in np.unique(buckets):
            boundary = int(self.boundaries[bucket])
            rows = np.concatenate([rest, order[buckets == bucket]])
            size = self.batch_tokens // boundary
            full = len(rows) // size * size
            batches += [(batch, boundary) for batch in self._batches(rows[:full], size)]
            rest = rows[full:]
        if len(rest):
            batches.append((rest, boundary))
        return [batches[i] for i in rng.permutation(len(batches))]

    def _batches(self, rows, size):
        for start in range(0, len(rows), _POOL * size):
            pool = rows[start : start + _POOL * size]
            pool = pool[np.lexsort((self.target_lengths[pool], self.source_lengths[pool]))]
            yield from pool.reshape(-1, size)

    def _check(self, pairs, max_length):
        if not len(self.used):
            raise ValueError(
                f"Expected pairs of at most {max_length} tokens a side to train on. Received: none: "
                f"{report_lengths(pairs, max_length)} Raise max_length, or give other text."
            )
        longest = int(pairs.lengths[self.used].max())
        boundary = self.boundaries[np.searchsorted(self.boundaries, longest)]
        if self.batch_tokens < boundary:
            raise ValueError(
                f"Expected batch_tokens of at least {boundary}, the bucket of the longest pair, which has {longest} tokens. "
                f"Received: {self.batch_tokens}. Raise batch_tokens, or lower max_length to leave such pairs out."
            )


def _too_long(pairs, max_length):
    return pairs.lengths > max_length


def _blank(pairs):
    return np.minimum(pairs.sources.lengths, pairs.targets.lengths) < 2


def _dataset(numbers, make):
    """Batches made by `make`. Not tf.data's from_generator, which makes the C library give memory back at every step."""

    def load(number):
        inputs, targets = tf.numpy_function(make, [number], (tf.int32, tf.int32))
        inputs, targets = tf.ensure_shape(inputs, [None, None]), tf.ensure_shape(targets, [None, None])
        return {"inputs": inputs, "targets": targets}, targets, tf.cast(targets != 0, tf.float32)

    return numbers.map(load).prefetch(_PREFETCHED)
