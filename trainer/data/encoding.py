"""Corpora as ids: tokenized once, then read from memory-mapped files, at constant memory for any
size.
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
from trainer.data.tokenizers import PAD_ID

_PAIRS_AT_ONCE = 4096
_SIDES = ("source", "target")


@dataclass(frozen=True)
class IdSequences:
    """Sequences of ids laid end to end: sequence i is `ids[offsets[i]:offsets[i + 1]]`.

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
        """Ids of every sequence, EOS included: int64 `[sequences]`."""
        return np.diff(self.offsets)

    def lengths_of(self, rows: np.ndarray) -> np.ndarray:
        """Ids of the sequences numbered `rows`, EOS included: int64 `[rows]`."""
        return self.offsets[rows + 1] - self.offsets[rows]

    def padded(self, rows: np.ndarray, width: int | None = None) -> np.ndarray:
        """The sequences numbered `rows`, padded with 0 to the longest of them or to `width`: int32
        `[rows, width]`.
        """
        starts, lengths = self.offsets[rows], self.lengths_of(rows)
        columns = np.arange(lengths.max() if width is None else width)
        is_id = columns < lengths[:, None]
        places = np.minimum(starts[:, None] + columns, len(self.ids) - 1)
        return np.where(is_id, self.ids[places], np.int32(PAD_ID))


@dataclass(frozen=True)
class EncodedPairs:
    """The ids of a corpus: sequence i of `targets` translates sequence i of `sources`.
    `encode_pairs` makes one.
    """

    sources: IdSequences
    targets: IdSequences

    def __len__(self):
        return len(self.sources)

    @property
    def lengths(self) -> np.ndarray:
        """Ids of the longer side of every pair, EOS included: int64 `[pairs]`."""
        return np.maximum(self.sources.lengths, self.targets.lengths)


def encode_pairs(
    corpus: Corpus, tokenizer, target_tokenizer=None, cache_dir: str | os.PathLike | None = None
) -> EncodedPairs:
    """Tokenizes a corpus.

    Args:
        corpus: sentence pairs; read once, as a stream.
        tokenizer: of the sources, and of the targets too if these have no tokenizer. Has
            `tokenize` and `fingerprint`, as `trainer.data.tokenizers.SentencePieceTokenizer`.
        target_tokenizer: of the targets.
        cache_dir: cache of the ids; an existing entry for the same corpus and tokenizers
            is used. By default nothing is kept.

    Raises:
        ValueError: for a corpus without a pair.
    """
    tokenizers = tokenizer, target_tokenizer or tokenizer
    if cache_dir is None:
        with tempfile.TemporaryDirectory(prefix="ids-") as directory:
            _write(corpus, tokenizers, Path(directory))
            # The files stay as long as they are mapped.
            return _load(Path(directory))
    fingerprint = digest(corpus.fingerprint, *(tokenizer.fingerprint for tokenizer in tokenizers))
    directory = Path(cache_dir) / f"ids-{fingerprint[:16]}"
    if not directory.is_dir():
        with atomic_files.whole_directory(directory) as aside:
            _write(corpus, tokenizers, aside)
    return _load(directory)


def _write(corpus, tokenizers, directory):
    with contextlib.ExitStack() as files:
        writers = [files.enter_context(_SequenceWriter(directory, side)) for side in _SIDES]
        for sides in _tokenize(_chunks(iter(corpus)), tokenizers):
            for writer, ids in zip(writers, sides):
                writer.add(ids.flat_values.numpy(), ids.row_lengths().numpy())
    if not writers[0].sequences:
        raise ValueError(
            "Expected a corpus with sentence pairs. Received: one without any. Give files with "
            "text."
        )


def _tokenize(chunks, tokenizers):
    """The ids of both sides of every chunk, in order; tokenized on all cores, few chunks ahead of
    the reader.
    """

    def tokenize(chunk):
        return [
            tokenizer.tokenize(tf.constant(strings))
            for tokenizer, strings in zip(tokenizers, zip(*chunk))
        ]

    workers = os.cpu_count() or 1
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        waiting = collections.deque()
        for chunk in chunks:
            waiting.append(pool.submit(tokenize, chunk))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class _SequenceWriter:
    """Writes the files of one side: `SIDE.ids`, plain int32, and `SIDE.offsets.npy`, whose header
    is written last.
    """

    def __init__(self, directory, side):
        self._ids = open(directory / f"{side}.ids", "wb")
        self._offsets = open(directory / f"{side}.offsets.npy", "wb")
        self._end = 0
        self.sequences = 0

    def __enter__(self):
        self._write_header()
        self._offsets.write(np.zeros(1, "<i8").tobytes())
        return self

    def add(self, ids, lengths):
        offsets = self._end + lengths.cumsum(dtype="<i8")
        self._ids.write(ids.astype("<i4").tobytes())
        self._offsets.write(offsets.tobytes())
        self._end = int(offsets[-1])
        self.sequences += len(lengths)

    def __exit__(self, *error):
        self._offsets.seek(0)
        self._write_header()
        self._offsets.close()
        self._ids.close()

    def _write_header(self):
        # NumPy pads headers, so that one with any number of rows takes as many bytes.
        shape = (self.sequences + 1,)
        np.lib.format.write_array_header_1_0(
            self._offsets, {"shape": shape, "fortran_order": False, "descr": "<i8"}
        )


def _chunks(pairs: Iterator) -> Iterator[list]:
    while chunk := list(itertools.islice(pairs, _PAIRS_AT_ONCE)):
        yield chunk


def _load(directory):
    sides = (
        IdSequences(
            np.memmap(directory / f"{name}.ids", dtype="<i4", mode="r"),
            np.load(directory / f"{name}.offsets.npy", mmap_mode="r"),
        )
        for name in _SIDES
    )
    return EncodedPairs(*sides)
