"""Batches of padded sentence pairs, or of texts of a language model, of similar length.

The pairs of batch n depend only on the corpus, the settings, the seed and n. A large corpus is
divided into C chunks. Chunk c consists of the blocks of pairs c, c + C, c + 2 C, ..., so that it
has pairs from all parts of the corpus. An epoch visits the chunks in random order, and shuffles the
pairs and the batches of each chunk. Memory use does not grow with the corpus.
"""

import functools
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from .encoding import EncodedPairs

PREFETCHED = 8
SHUFFLED_PAIRS = 1 << 20  # Pairs of a chunk, which are shuffled together.
_BLOCKS_PER_CHUNK = 256
# Number of batches whose pairs are sorted by length together. The boundary of a bucket applies to
# the longer side only; sorting makes the lengths of the shorter sides similar too.
_SORTED_BATCHES = 16
# As in tensor2tensor's `data_reader._bucket_boundaries`.
_SHORTEST_BUCKET = 8
_BUCKET_GROWTH = 1.1
_PAIRS_PER_PASS = 1 << 16  # Pairs whose lengths are held in memory together.


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
    n depends only on pairs, settings and seed, so that a run can resume at any step.

    Args:
        pairs: the encoded corpus.
        batch_tokens: maximum number of tokens of the longer side in a batch, including padding.
        max_length: maximum length of a side, in ids with EOS. Longer pairs and pairs with a blank
            side are skipped: `report_lengths` counts them.
        seed: seed of the order.
        start_step: number of the first batch.
        pad_to_boundary: whether to pad both sides to the boundary of the bucket, and to fill small
            batches with entries of padding. Each bucket then has a single shape, which XLA
            requires. By default, batches are padded to their longest sentences.
        row_multiple: with `pad_to_boundary`, the number of rows of a batch is rounded up to a
            multiple of this number, so that the shards of all devices have the same shape.
        chunk_pairs: number of pairs that are shuffled together and held in memory.

    Returns:
        A dataset of `{"inputs": int32 [B, S], "targets": int32 [B, T]}`, without "inputs" for a
        language model.

    Raises:
        ValueError: if all pairs are skipped, or the longest pair does not fit into a batch.
    """
    order = BatchOrder(pairs, batch_tokens, max_length, seed, chunk_pairs)

    def make_batch(step):
        rows, boundary = order.batch(int(step))
        sides = pairs.inputs.values()
        if not pad_to_boundary:
            return [side.padded(rows) for side in sides]
        missing = ((0, padded_rows(batch_tokens, boundary, row_multiple) - len(rows)), (0, 0))
        return [np.pad(side.padded(rows, boundary), missing) for side in sides]

    return _make_dataset(tf.data.Dataset.counter(start_step), make_batch, [*pairs.inputs])


def padded_rows(batch_tokens: int, boundary: int, row_multiple: int = 1) -> int:
    """Returns the rows of the batches of a bucket of length `boundary` with `pad_to_boundary`.

    Example:

    >>> from trainer.data.batching import padded_rows
    >>> padded_rows(100, 20), padded_rows(100, 20, row_multiple=4)
    (5, 8)
    """
    return -(-(batch_tokens // boundary) // row_multiple) * row_multiple


def evaluation_batches(
    pairs: EncodedPairs, batch_tokens: int, used: np.ndarray | None = None
) -> tf.data.Dataset:
    """Returns a dataset of batches of all pairs in order, with known cardinality.

    `batch_tokens` and the format are those of `training_batches`. A longer pair is a batch.
    All lengths are held in memory. `used` are indices of at least one pair. Default: all.
    """
    used = np.arange(len(pairs)) if used is None else used
    starts, longest = [0], 0
    for row, length in enumerate(pairs.lengths[used]):
        longest = max(longest, length)
        if longest * (row + 1 - starts[-1]) > batch_tokens and row > starts[-1]:
            starts.append(row)
            longest = length
    ends = [*starts[1:], len(used)]

    def make_batch(batch):
        rows = used[starts[batch] : ends[batch]]
        return [side.padded(rows) for side in pairs.inputs.values()]

    return _make_dataset(tf.data.Dataset.range(len(ends)), make_batch, [*pairs.inputs])


def _make_dataset(numbers, make_batch, names):
    # With Dataset.from_generator, malloc would return memory to the system at every step.
    def load(number):
        sides = tf.numpy_function(make_batch, [number], [tf.int32] * len(names))
        return {name: tf.ensure_shape(ids, [None, None]) for name, ids in zip(names, sides)}

    return numbers.map(load).prefetch(PREFETCHED)


class Chunks:
    """A corpus of `pairs` pairs, divided into chunks of at most `chunk_pairs`.

    Example:

    >>> from trainer.data.batching import Chunks
    >>> chunks = Chunks(pairs=11, chunk_pairs=4)
    >>> [chunks.rows(chunk).tolist() for chunk in range(len(chunks))]
    [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8]]
    """

    def __init__(self, pairs: int, chunk_pairs: int):
        self.pairs = pairs
        self.block = max(1, chunk_pairs // _BLOCKS_PER_CHUNK)
        whole_blocks = max(1, chunk_pairs // self.block) * self.block
        self.count = 1 if pairs <= chunk_pairs else -(-pairs // whole_blocks)

    def __len__(self):
        return self.count

    def rows(self, chunk: int) -> np.ndarray:
        """Returns the indices of the pairs of a chunk in ascending order, int64."""
        starts = np.arange(chunk * self.block, self.pairs, self.count * self.block)
        rows = (starts[:, None] + np.arange(self.block)).ravel()
        return rows[rows < self.pairs]


class BatchOrder:
    """The assignment of pairs to batches in a run. Its arguments: see `training_batches`."""

    def __init__(
        self,
        pairs: EncodedPairs,
        batch_tokens: int,
        max_length: int,
        seed: int,
        chunk_pairs: int = SHUFFLED_PAIRS,
    ):
        self.pairs = pairs
        self.batch_tokens = batch_tokens
        self.max_length = max_length
        self.seed = seed
        self.boundaries = bucket_boundaries(max_length)
        self.chunks = Chunks(len(pairs), chunk_pairs)
        self.batches_per_chunk = np.array(self._count_batches())
        self.batches_per_epoch = int(self.batches_per_chunk.sum())
        # Consecutive steps are mostly in the same chunk.
        self._latest_chunk = functools.lru_cache(maxsize=1)(self.chunk_batches)

    def batch(self, step: int) -> tuple[np.ndarray, int]:
        """Returns the indices of a batch's pairs, and the boundary of their bucket."""
        epoch, number = divmod(step, self.batches_per_epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.chunks))
        ends = self.batches_per_chunk[order].cumsum()
        i = int(np.searchsorted(ends, number, side="right"))
        return self._latest_chunk(epoch, int(order[i]))[number - int(ends[i])]

    def chunk_batches(self, epoch: int, chunk: int) -> list[tuple[np.ndarray, int]]:
        """Returns all batches of a chunk in an epoch, each in the format of `batch`."""
        # NumPy ignores trailing zeros of a seed: `[seed, epoch, 0]` would repeat `[seed, epoch]`.
        entropy = [self.seed, epoch] if len(self.chunks) == 1 else [self.seed, epoch, chunk + 1]
        rng = np.random.default_rng(entropy)
        rows, lengths = self._used_pairs(chunk)
        order = rng.permutation(len(rows))
        buckets = self._buckets(lengths)[order]
        batches, remaining, boundary = [], order[:0], None
        for bucket in np.unique(buckets):
            boundary = int(self.boundaries[bucket])
            chosen = np.concatenate([remaining, order[buckets == bucket]])
            size = self.batch_tokens // boundary
            full = len(chosen) // size * size
            for start in range(0, full, _SORTED_BATCHES * size):
                pool = chosen[start : min(start + _SORTED_BATCHES * size, full)]
                pool = pool[np.lexsort(lengths[::-1, pool])]  # By sources, then by targets.
                batches += [(batch, boundary) for batch in rows[pool].reshape(-1, size)]
            remaining = chosen[full:]
        if len(remaining):
            batches.append((rows[remaining], boundary))
        return [batches[i] for i in rng.permutation(len(batches))]

    def _used_pairs(self, chunk):
        """Returns the indices of a chunk's pairs to train on, and their lengths by side."""
        rows = self.chunks.rows(chunk)
        lengths = self.pairs.lengths_of(rows)
        used = ~is_too_long(lengths, self.max_length) & ~is_blank(lengths)
        return rows[used], lengths[:, used]

    def _buckets(self, lengths):
        return np.searchsorted(self.boundaries, lengths.max(axis=0))

    def _count_batches(self):
        """Returns the number of batches of every chunk."""
        counts, longest = [], 0
        for chunk in range(len(self.chunks)):
            _, lengths = self._used_pairs(chunk)
            counts.append(np.bincount(self._buckets(lengths)))
            longest = max(longest, lengths.max(initial=0))
        self._check(longest)
        return [self._count_chunk_batches(pairs) for pairs in counts]

    def _count_chunk_batches(self, bucket_pairs):
        batches, remaining = 0, 0
        for bucket in np.flatnonzero(bucket_pairs):
            size = self.batch_tokens // int(self.boundaries[bucket])
            full, remaining = divmod(remaining + int(bucket_pairs[bucket]), size)
            batches += full
        return batches + (remaining > 0)

    def _check(self, longest):
        if not longest:
            side = "" if self.pairs.sources is None else " per side"
            raise ValueError(
                f"Expected training {self.pairs.unit} of at most {self.max_length} tokens{side}. "
                f"Received: none. {report_lengths(self.pairs, self.max_length)} Raise max_length, "
                "or use other text."
            )
        boundary = self.boundaries[np.searchsorted(self.boundaries, longest)]
        if self.batch_tokens < boundary:
            raise ValueError(
                f"Expected batch_tokens of at least {boundary}, the bucket of the longest "
                f"{self.pairs.unit[:-1]}, which has {longest} tokens. Received: "
                f"{self.batch_tokens}. Raise batch_tokens, or lower max_length to skip such "
                f"{self.pairs.unit}."
            )


def bucket_boundaries(max_length: int) -> np.ndarray:
    """Returns the maximum length of every bucket; the last one is `max_length`.

    Example:

    >>> from trainer.data.batching import bucket_boundaries
    >>> bucket_boundaries(25).tolist()
    [8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 24, 25]
    """
    boundaries, boundary = [], _SHORTEST_BUCKET
    while boundary < max_length:
        boundaries.append(boundary)
        boundary = max(boundary + 1, int(boundary * _BUCKET_GROWTH))
    return np.array(boundaries + [max_length])


def is_too_long(lengths: np.ndarray, max_length: int) -> np.ndarray:
    """Returns whether each pair has more than `max_length` ids on a side, from all lengths."""
    return lengths.max(axis=0) > max_length


def is_blank(lengths: np.ndarray) -> np.ndarray:
    """Returns whether each pair has a side that consists of EOS only, from all lengths."""
    return lengths.min(axis=0) < 2


@dataclass(frozen=True)
class LengthReport:
    """Numbers of pairs that training uses and skips, and of buckets with a pair to train on.

    `boundary` is that of the last of these buckets, 0 without any: no batch is longer.
    """

    pairs: int
    too_long: int
    blank: int
    max_length: int
    buckets: int
    boundary: int
    unit: str = "pairs"

    @property
    def used(self) -> int:
        return self.pairs - self.too_long - self.blank

    def __str__(self):
        return (
            f"{self.used} of {self.pairs} {self.unit} are used. Skipped: {self.too_long} longer "
            f"than {self.max_length} tokens, {self.describe_blank()}."
        )

    def describe_blank(self) -> str:
        return f"{self.blank} {'with a blank side' if self.unit == 'pairs' else 'blank'}"


def report_lengths(pairs: EncodedPairs, max_length: int) -> LengthReport:
    """Returns the numbers of pairs that training uses and skips."""
    boundaries, occupied = bucket_boundaries(max_length), set()
    too_long = blank = 0
    for start in range(0, len(pairs), _PAIRS_PER_PASS):
        rows = np.arange(start, min(start + _PAIRS_PER_PASS, len(pairs)))
        lengths = pairs.lengths_of(rows)
        are_too_long, are_blank = is_too_long(lengths, max_length), is_blank(lengths)
        too_long += int(are_too_long.sum())
        blank += int((are_blank & ~are_too_long).sum())
        used = lengths.max(axis=0)[~are_too_long & ~are_blank]
        occupied.update(np.searchsorted(boundaries, used).tolist())
    boundary = int(boundaries[max(occupied)]) if occupied else 0
    return LengthReport(
        len(pairs), too_long, blank, max_length, len(occupied), boundary, pairs.unit
    )
