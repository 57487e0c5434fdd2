"""Selection of the pairs of each batch.

The pairs of batch n depend only on the corpus, the settings, the seed and n. A large corpus is
divided into C chunks. Chunk c consists of the blocks of pairs c, c + C, c + 2 C, ..., so that it
has pairs from all parts of the corpus. An epoch visits the chunks in random order, and shuffles the
pairs and the batches of each chunk. Memory use does not grow with the corpus.
"""

import functools

import numpy as np

from trainer.data.buckets import bucket_boundaries, is_blank, is_too_long, report_lengths
from trainer.data.encoding import EncodedPairs

SHUFFLED_PAIRS = 1 << 20  # Pairs of a chunk, which are shuffled together.
_BLOCKS_PER_CHUNK = 256
# Number of batches whose pairs are sorted by length together. The boundary of a bucket applies to
# the longer side only; sorting makes the lengths of the shorter sides similar too.
_SORTED_BATCHES = 16


class Chunks:
    """A corpus divided into chunks.

    Args:
        pairs: number of pairs in the corpus.
        chunk_pairs: maximum number of pairs in a chunk.

    Example:

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
        if self.count == 1:
            return np.arange(self.pairs)
        starts = np.arange(chunk * self.block, self.pairs, self.count * self.block)
        rows = (starts[:, None] + np.arange(self.block)).ravel()
        return rows[rows < self.pairs]


class BatchOrder:
    """The assignment of pairs to batches in a training run.

    Args:
        pairs: the encoded corpus.
        batch_tokens: maximum number of tokens of the longer side in a batch, including padding.
        max_length: maximum length of a side. Longer pairs are skipped.
        seed: seed of the order.
        chunk_pairs: number of pairs that are shuffled together and held in memory.

    Attributes:
        batches_per_epoch: number of batches in every epoch.

    Raises:
        ValueError: if all pairs are skipped, or the longest pair does not fit into a batch.
    """

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
        rows, sources, targets = self._used_pairs(chunk)
        order = rng.permutation(len(rows))
        buckets = self._buckets(sources, targets)[order]
        batches, remaining, boundary = [], order[:0], None
        for bucket in np.unique(buckets):
            boundary = int(self.boundaries[bucket])
            chosen = np.concatenate([remaining, order[buckets == bucket]])
            size = self.batch_tokens // boundary
            full = len(chosen) // size * size
            for start in range(0, full, _SORTED_BATCHES * size):
                pool = chosen[start : min(start + _SORTED_BATCHES * size, full)]
                pool = pool[np.lexsort((targets[pool], sources[pool]))]
                batches += [(batch, boundary) for batch in rows[pool].reshape(-1, size)]
            remaining = chosen[full:]
        if len(remaining):
            batches.append((rows[remaining], boundary))
        return [batches[i] for i in rng.permutation(len(batches))]

    def _used_pairs(self, chunk):
        """Returns the indices of a chunk's pairs to train on, and the lengths of both sides."""
        rows = self.chunks.rows(chunk)
        sources = self.pairs.sources.lengths_of(rows)
        targets = self.pairs.targets.lengths_of(rows)
        used = ~is_too_long(sources, targets, self.max_length) & ~is_blank(sources, targets)
        return rows[used], sources[used], targets[used]

    def _buckets(self, sources, targets):
        return np.searchsorted(self.boundaries, np.maximum(sources, targets))

    def _count_batches(self):
        """Returns the number of batches of every chunk."""
        counts, longest = [], 0
        for chunk in range(len(self.chunks)):
            _, sources, targets = self._used_pairs(chunk)
            buckets = self._buckets(sources, targets)
            counts.append(np.bincount(buckets, minlength=len(self.boundaries)))
            longest = max(longest, sources.max(initial=0), targets.max(initial=0))
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
            raise ValueError(
                f"Expected training pairs of at most {self.max_length} tokens per side. Received: "
                f"none. {report_lengths(self.pairs, self.max_length)} Raise max_length, or use "
                "other text."
            )
        boundary = self.boundaries[np.searchsorted(self.boundaries, longest)]
        if self.batch_tokens < boundary:
            raise ValueError(
                f"Expected batch_tokens of at least {boundary}, the bucket of the longest pair, "
                f"which has {longest} tokens. Received: {self.batch_tokens}. Raise batch_tokens, "
                "or lower max_length to skip such pairs."
            )
