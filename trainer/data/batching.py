"""Datasets of padded batches of sentence pairs of similar length."""

import numpy as np
import tensorflow as tf

from trainer.data.batch_order import SHUFFLED_PAIRS, BatchOrder
from trainer.data.encoding import EncodedPairs

PREFETCHED = 8


def training_batches(
    pairs: EncodedPairs,
    batch_tokens: int,
    max_length: int,
    seed: int,
    start_step: int = 0,
    *,
    pad_to_boundary: bool = False,
    row_multiple: int = 1,
    chunk_pairs: int = SHUFFLED_PAIRS,
) -> tf.data.Dataset:
    """Returns an infinite dataset of batches, with a different order in each epoch.

    The length of a pair is the length of its longer side with EOS. A batch of the bucket of length
    n has `batch_tokens // n` pairs. Pairs that do not fill a batch are moved to the next longer
    bucket, so that only one batch of an epoch (of each chunk, for large corpora) is smaller. Batch
    n depends only on pairs, settings and seed, so that a run can resume at any step: see
    `trainer.data.batch_order`.

    Args:
        pairs: the encoded corpus.
        batch_tokens: maximum number of tokens of the longer side in a batch, including padding.
        max_length: maximum length of a side, in ids with EOS. Longer pairs and pairs with a blank
            side are skipped: `trainer.data.buckets.report_lengths` counts them.
        seed: seed of the order.
        start_step: number of the first batch.
        pad_to_boundary: whether to pad both sides to the boundary of the bucket, and to fill small
            batches with entries of padding. Each bucket then has a single shape, which XLA
            requires. By default, batches are padded to their longest sentences.
        row_multiple: with `pad_to_boundary`, the number of rows of a batch is rounded up to a
            multiple of this number, so that the shards of all devices have the same shape.
        chunk_pairs: number of pairs that are shuffled together and held in memory.

    Returns:
        A dataset of `{"inputs": int32 [B, S], "targets": int32 [B, T]}`.

    Raises:
        ValueError: if all pairs are skipped, or the longest pair does not fit into a batch.
    """
    order = BatchOrder(pairs, batch_tokens, max_length, seed, chunk_pairs)

    def make_batch(step):
        rows, boundary = order.batch(int(step))
        if not pad_to_boundary:
            return pairs.sources.padded(rows), pairs.targets.padded(rows)
        missing = ((0, padded_rows(batch_tokens, boundary, row_multiple) - len(rows)), (0, 0))
        return tuple(
            np.pad(side.padded(rows, boundary), missing) for side in (pairs.sources, pairs.targets)
        )

    return _make_dataset(tf.data.Dataset.counter(start_step), make_batch)


def padded_rows(batch_tokens: int, boundary: int, row_multiple: int = 1) -> int:
    """Returns the rows of the batches of a bucket with `pad_to_boundary`.

    Args:
        batch_tokens, row_multiple: as in `training_batches`.
        boundary: length of the bucket.

    Example:

    >>> padded_rows(100, 20), padded_rows(100, 20, row_multiple=4)
    (5, 8)
    """
    return -(-(batch_tokens // boundary) // row_multiple) * row_multiple


def evaluation_batches(pairs: EncodedPairs, batch_tokens: int) -> tf.data.Dataset:
    """Returns a dataset of batches of all pairs in order.

    A pair that is longer than `batch_tokens` forms its own batch. All lengths are held in memory.

    Args:
        pairs: the encoded corpus.
        batch_tokens: maximum number of tokens of the longer side in a batch, including padding.

    Returns:
        A dataset in the format of `training_batches`, with known cardinality.
    """
    starts, longest = [0], 0
    for row, length in enumerate(pairs.lengths):
        longest = max(longest, length)
        if longest * (row + 1 - starts[-1]) > batch_tokens and row > starts[-1]:
            starts.append(row)
            longest = length
    ends = [*starts[1:], len(pairs)]

    def make_batch(batch):
        rows = np.arange(starts[batch], ends[batch])
        return pairs.sources.padded(rows), pairs.targets.padded(rows)

    return _make_dataset(tf.data.Dataset.range(len(ends)), make_batch)


def _make_dataset(numbers, make_batch):
    # With Dataset.from_generator, malloc would return memory to the system at every step.
    def load(number):
        sides = tf.numpy_function(make_batch, [number], (tf.int32, tf.int32))
        inputs, targets = (tf.ensure_shape(side, [None, None]) for side in sides)
        return {"inputs": inputs, "targets": targets}

    return numbers.map(load).prefetch(PREFETCHED)
