"""Encoding of corpora as ids, which are then read from memory-mapped files.

Memory use does not grow with the corpus.
"""

import collections
import concurrent.futures
import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf

from trainer import atomic_files
from trainer.data.corpus import Corpus, digest
from trainer.data.token_ids import PAD_ID
from trainer.data.tokenizer import Tokenizer

_PAIRS_PER_CALL = 4096  # Pairs per call of the tokenizer.
_SIDES = ("source", "target")
# Fields of IdSequences. Each is stored in a binary file without header.
_ARRAYS = {"ids": np.int32, "offsets": np.int64}


@dataclass(frozen=True)
class IdSequences:
    """Concatenated sequences of ids: sequence i is `ids[offsets[i]:offsets[i + 1]]`.

    Args:
        ids: int32 `[all ids]`.
        offsets: int64 `[sequences + 1]`.
    """

    ids: np.ndarray
    offsets: np.ndarray

    def __len__(self):
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Number of ids of every sequence, including EOS, int64 `[sequences]`."""
        return np.diff(self.offsets)

    def lengths_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the number of ids of the sequences `rows`, including EOS, int64 `[rows]`."""
        return self.offsets[rows + 1] - self.offsets[rows]

    def padded(self, rows: np.ndarray, width: int | None = None) -> np.ndarray:
        """Returns the sequences `rows`, padded with 0 to `width` or to the longest of them.

        Returns:
            int32 `[rows, width]`.
        """
        starts, lengths = self.offsets[rows], self.lengths_of(rows)
        columns = np.arange(lengths.max() if width is None else width)
        positions = np.minimum(starts[:, None] + columns, len(self.ids) - 1)
        return np.where(columns < lengths[:, None], self.ids[positions], np.int32(PAD_ID))


@dataclass(frozen=True)
class EncodedPairs:
    """The ids of a corpus. Sequence i of `targets` translates sequence i of `sources`."""

    sources: IdSequences
    targets: IdSequences

    def __len__(self):
        return len(self.sources)

    @property
    def lengths(self) -> np.ndarray:
        """Number of ids of the longer side of every pair, including EOS, int64 `[pairs]`."""
        return np.maximum(self.sources.lengths, self.targets.lengths)


def encode_pairs(
    corpus: Corpus, tokenizer: Tokenizer, cache_dir: str | os.PathLike | None = None
) -> EncodedPairs:
    """Returns the ids of a corpus.

    Args:
        corpus: sentence pairs. They are read once, as a stream.
        tokenizer: tokenizer of both sides.
        cache_dir: directory to cache the ids in. Later calls with the same corpus and tokenizer
            read them from there. Ids of other corpora in it are removed. By default they are not
            cached.

    Raises:
        ValueError: if the corpus has no pair.
    """
    if cache_dir is None:
        with tempfile.TemporaryDirectory(prefix="ids-") as directory:
            _write(corpus, tokenizer, Path(directory))
            # Memory-mapped files stay readable after they are deleted.
            return _load(Path(directory))
    fingerprint = digest("int32 ids, int64 offsets", corpus.fingerprint, tokenizer.fingerprint)
    directory = Path(cache_dir) / f"ids-{fingerprint[:16]}"
    if not directory.is_dir():
        with atomic_files.atomic_directory(directory) as temporary:
            _write(corpus, tokenizer, temporary)
        for other in directory.parent.glob("ids-*"):
            if other != directory:
                atomic_files.remove_directory(other)
    return _load(directory)


def _write(corpus, tokenizer, directory):
    """Writes the arrays of both sides' `IdSequences` to binary files."""
    with contextlib.ExitStack() as stack:
        files = [
            [stack.enter_context(open(directory / f"{side}.{name}", "wb")) for name in _ARRAYS]
            for side in _SIDES
        ]
        ends = [0, 0]
        for _, offsets in files:
            offsets.write(np.int64(0).tobytes())
        for sides in _tokenize_chunks(corpus, tokenizer):
            for i, ids in enumerate(sides):
                offsets = ends[i] + np.cumsum(ids.row_lengths().numpy())
                ends[i] = offsets[-1]
                files[i][0].write(ids.flat_values.numpy().tobytes())
                files[i][1].write(offsets.tobytes())
    if not ends[0]:
        raise ValueError(
            "Expected a corpus with sentence pairs. Received: an empty corpus. Use files with text."
        )


def _tokenize_chunks(corpus, tokenizer) -> Iterator[list[tf.RaggedTensor]]:
    """Yields the ids of both sides of every chunk of pairs, in order.

    Chunks are tokenized in parallel. At most one chunk per core is buffered.
    """

    def tokenize(chunk):
        # The exported graph strips sentences too.
        return [tokenizer.tokenize(tf.strings.strip(strings)) for strings in zip(*chunk)]

    pairs, workers = iter(corpus), os.cpu_count() or 1
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        waiting = collections.deque()
        while chunk := list(itertools.islice(pairs, _PAIRS_PER_CALL)):
            waiting.append(pool.submit(tokenize, chunk))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        for future in waiting:
            yield future.result()


def _load(directory):
    def load_side(side):
        arrays = {
            name: np.memmap(directory / f"{side}.{name}", dtype, mode="r")
            for name, dtype in _ARRAYS.items()
        }
        return IdSequences(**arrays)

    return EncodedPairs(*map(load_side, _SIDES))
