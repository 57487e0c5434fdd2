"""Batches of sentence pairs of like length, in an order that the seed and the number of the step
decide.
"""

import numpy as np
import tensorflow as tf

from trainer.data.batch_order import CHUNK_PAIRS, TrainingPlan
from trainer.data.encoding import EncodedPairs

PREFETCHED = 8


def training_batches(
    pairs: EncodedPairs,
    batch_tokens: int,
    max_length: int,
    seed: int,
    start_step: int = 0,
    pad_to_boundary: bool = False,
    chunk_pairs: int = CHUNK_PAIRS,
) -> tf.data.Dataset:
    """Endless batches of pairs of like length, every epoch in another order.

    A pair's length is that of its longer side with EOS. A batch of the bucket of length n has
    `batch_tokens // n` pairs; the few that are left over in a bucket join the next longer one, so
    that only one batch of an epoch is smaller. Batch number n depends on the pairs, the settings
    and the seed only, so that a run can continue at any step.

    A corpus of more than `chunk_pairs` pairs is split into chunks (`trainer.data.batch_order`).
    An epoch visits the chunks in a random order. Memory does not grow with the corpus.

    Args:
        pairs: the encoded corpus.
        batch_tokens: tokens of the longer side in a batch, padding included, at most.
        max_length: longest side of a pair, in ids with EOS. Longer pairs are left out, as are pairs
            with a blank side: `report_lengths` counts them.
        seed: decides the order.
        start_step: number of the first batch.
        pad_to_boundary: pad both sides to the bucket's length, and the last batch of an epoch with
            rows of padding, so that there are only as many shapes as buckets, as XLA wants it. By
            default batches are as wide as their longest sentences.
        chunk_pairs: how many pairs are shuffled among each other, and held in memory.

    Returns:
        A dataset of `({"inputs": int32 [B, S], "targets": int32 [B, T]}, targets, weights float32
        [B, T])`, weights being 1 for tokens and 0 for padding.

    Raises:
        ValueError: if no pair is left, or a bucket's length is more than `batch_tokens`.
    """
    if start_step < 0:
        raise ValueError(f"Expected start_step to be at least 0. Received: {start_step}.")
    plan = TrainingPlan(pairs, batch_tokens, max_length, seed, chunk_pairs)

    def make(step):
        rows, boundary = plan.batch(int(step))
        if not pad_to_boundary:
            return pairs.sources.padded(rows), pairs.targets.padded(rows)
        missing = ((0, batch_tokens // boundary - len(rows)), (0, 0))
        return tuple(
            np.pad(side.padded(rows, boundary), missing) for side in (pairs.sources, pairs.targets)
        )

    return _dataset(tf.data.Dataset.counter(start_step), make)


def evaluation_batches(pairs: EncodedPairs, batch_tokens: int) -> tf.data.Dataset:
    """All pairs once, in order, in batches of at most `batch_tokens` tokens of the longer side,
    padding included.

    A pair that is longer than `batch_tokens` is a separate batch. Meant for sets for development
    and tests: all lengths are held in memory.

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


def _dataset(numbers, make):
    """Batches made by `make`.

    Not tf.data's from_generator, which makes the C library give memory back at every step.
    """

    def load(number):
        inputs, targets = tf.numpy_function(make, [number], (tf.int32, tf.int32))
        inputs, targets = (
            tf.ensure_shape(inputs, [None, None]),
            tf.ensure_shape(targets, [None, None]),
        )
        return {"inputs": inputs, "targets": targets}, targets, tf.cast(targets != 0, tf.float32)

    return numbers.map(load).prefetch(PREFETCHED)
