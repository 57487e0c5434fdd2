"""Which pairs of a corpus form batch number n: a function of corpus, settings, seed and n, at
constant memory.

A corpus of more than a chunk is dealt out to chunks: chunk c of C has its blocks number c, c + C, c
+ 2 C, …, so that every chunk has its share of everything that a corpus is put together from. Which
pairs a chunk has never changes, so neither does its number of batches; an epoch shuffles the order
of chunks, and the pairs and batches of each.
"""

import numpy as np

from trainer.data.buckets import bucket_boundaries, is_blank, is_too_long, report_lengths
from trainer.data.encoding import EncodedPairs

CHUNK_PAIRS = 1 << 20
_BLOCKS = 256  # of a chunk
# Batches of a bucket among which pairs are sorted, so that shorter sides are similar too.
_POOL = 16


class Chunks:
    """A corpus dealt out to chunks of at most so many pairs.

    Args:
        pairs: number of pairs in the corpus.
        chunk_pairs: largest number of pairs in a chunk.

    Example:

    >>> chunks = Chunks(pairs=11, chunk_pairs=4)
    >>> [chunks.rows(chunk).tolist() for chunk in range(len(chunks))]
    [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8]]
    """

    def __init__(self, pairs: int, chunk_pairs: int):
        self.pairs = pairs
        self.block = max(1, chunk_pairs // _BLOCKS)
        # Rounded to whole blocks, or chunks could be larger than asked for.
        blocks_of_chunk = max(1, chunk_pairs // self.block)
        self.count = 1 if pairs <= chunk_pairs else -(-pairs // (blocks_of_chunk * self.block))

    def __len__(self):
        return self.count

    def rows(self, chunk: int) -> np.ndarray:
        """The numbers of a chunk's pairs, ascending: int64."""
        if self.count == 1:
            return np.arange(self.pairs)
        starts = np.arange(chunk * self.block, self.pairs, self.count * self.block)
        rows = (starts[:, None] + np.arange(self.block)).ravel()
        return rows[rows < self.pairs]


class TrainingPlan:
    """Which pairs form batch number n.

    Args:
        pairs: the encoded corpus.
        batch_tokens: tokens of the longer side in a batch, padding included, at most.
        max_length: longest side of a pair that is used.
        seed: decides the order.
        chunk_pairs: pairs that are shuffled among each other, and held in memory.

    Attributes:
        batches_per_epoch: the same in every epoch.

    Raises:
        ValueError: if no pair is left, or a bucket's length is more than `batch_tokens`.
    """

    def __init__(
        self,
        pairs: EncodedPairs,
        batch_tokens: int,
        max_length: int,
        seed: int,
        chunk_pairs: int = CHUNK_PAIRS,
    ):
        self.pairs, self.batch_tokens, self.max_length, self.seed = (
            pairs,
            batch_tokens,
            max_length,
            seed,
        )
        self.boundaries = bucket_boundaries(max_length)
        self.chunks = Chunks(len(pairs), chunk_pairs)
        self.batches_per_chunk = np.array(self._count_batches())
        self.batches_per_epoch = int(self.batches_per_chunk.sum())
        self._planned = None, []

    def batch(self, step: int) -> tuple[np.ndarray, int]:
        """The numbers of the pairs, and the boundary of the bucket."""
        epoch, number = divmod(step, self.batches_per_epoch)
        order = self._chunk_order(epoch)
        ends = self.batches_per_chunk[order].cumsum()
        place = int(np.searchsorted(ends, number, side="right"))
        chunk = epoch, int(order[place])
        if self._planned[0] != chunk:
            self._planned = chunk, self._plan(*chunk)
        return self._planned[1][number - int(ends[place])]

    def _chunk_order(self, epoch):
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.chunks))

    def _plan(self, epoch, chunk):
        """All batches of a chunk in an epoch: (numbers of pairs, boundary) of each."""
        # A zero more would give the same numbers as [seed, epoch], which order the chunks.
        entropy = [self.seed, epoch] if len(self.chunks) == 1 else [self.seed, epoch, chunk + 1]
        rng = np.random.default_rng(entropy)
        rows, sources, targets = self._used(chunk)
        order = rng.permutation(len(rows))
        buckets = self._buckets(sources, targets)[order]
        batches, rest, boundary = [], order[:0], None
        for bucket in np.unique(buckets):
            boundary = int(self.boundaries[bucket])
            chosen = np.concatenate([rest, order[buckets == bucket]])
            size = self.batch_tokens // boundary
            full = len(chosen) // size * size
            for start in range(0, full, _POOL * size):
                pool = chosen[start : min(start + _POOL * size, full)]
                pool = pool[np.lexsort((targets[pool], sources[pool]))]
                batches += [(batch, boundary) for batch in rows[pool].reshape(-1, size)]
            rest = chosen[full:]
        if len(rest):
            batches.append((rows[rest], boundary))
        return [batches[i] for i in rng.permutation(len(batches))]

    def _used(self, chunk):
        """The numbers of a chunk's pairs that are used, and the lengths of both sides."""
        rows = self.chunks.rows(chunk)
        sources, targets = (
            side.lengths_of(rows) for side in (self.pairs.sources, self.pairs.targets)
        )
        used = ~is_too_long(sources, targets, self.max_length) & ~is_blank(sources, targets)
        return rows[used], sources[used], targets[used]

    def _buckets(self, sources, targets):
        return np.searchsorted(self.boundaries, np.maximum(sources, targets))

    def _count_batches(self):
        """The number of batches of every chunk, from how many pairs its buckets have."""
        chunks, longest = [], 0
        for chunk in range(len(self.chunks)):
            _, sources, targets = self._used(chunk)
            chunks.append(
                np.bincount(self._buckets(sources, targets), minlength=len(self.boundaries))
            )
            longest = max(longest, sources.max(initial=0), targets.max(initial=0))
        self._check(longest)
        return [self._count_batches_of(buckets) for buckets in chunks]

    def _count_batches_of(self, buckets):
        batches, rest = 0, 0
        for bucket in np.flatnonzero(buckets):
            full, rest = divmod(
                rest + int(buckets[bucket]), self.batch_tokens // int(self.boundaries[bucket])
            )
            batches += full
        return batches + (rest > 0)

    def _check(self, longest):
        if not longest:
            raise ValueError(
                f"Expected pairs of at most {self.max_length} tokens a side to train on. "
                "Received: none: "
                f"{report_lengths(self.pairs, self.max_length)} Raise max_length, or give other "
                "text."
            )
        boundary = self.boundaries[np.searchsorted(self.boundaries, longest)]
        if self.batch_tokens < boundary:
            raise ValueError(
                f"Expected batch_tokens of at least {boundary}, the bucket of the longest pair, "
                f"which has {longest} tokens. "
                f"Received: {self.batch_tokens}. Raise batch_tokens, or lower max_length to leave "
                "such pairs out."
            )
