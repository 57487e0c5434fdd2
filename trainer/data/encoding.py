"""Corpora as ids: tokenized once, then read from memory-mapped files, at constant memory for any size."""

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

    def padded(self, rows: np.ndarray, width: int | None = None) -> np.ndarray:
        """The sequences numbered `rows`, padded with 0 to the longest of them or to `width`: int32 `[rows, width]`."""
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        columns = np.arange(lengths.max() if width is None else width)
        is_id = columns < lengths[:, None]
        places = np.minimum(starts[:, None] + columns, len(self.ids) - 1)
        return np.where(is_id, self.ids[places], np.int32(PAD_ID))


@dataclass(frozen=True)
class EncodedPairs:
    """The ids of a corpus: sequence i of `targets` translates sequence i of `sources`. `encode_pairs` makes one."""

    sources: IdSequences
    targets: IdSequences

    def __len__(self):
        return len(self.sources)

    @property
    def lengths(self) -> np.ndarray:
        """Ids of the longer side of every pair, EOS included: int64 `[pairs]`."""
        return np.maximum(self.sources.lengths, self.targets.lengths)


def encode_pairs(corpus: Corpus, tokenizer, target_tokenizer=None, cache_dir: str | os.PathLike | None = None) -> EncodedPairs:
    """Tokenizes a corpus.

    Args:
        corpus: sentence pairs; read once, as a stream.
        tokenizer: of the sources, and of the targets too where these have none of their own. Has `tokenize` and `fingerprint`, as
            `trainer.data.tokenizers.SentencePieceTokenizer`.
        target_tokenizer: of the targets.
        cache_dir: where the ids are kept; what is there already for the same corpus and tokenizers is used. By default nothing is
            kept.

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
    lengths = [[], []]
    with open(directory / "source.ids", "wb") as sources, open(directory / "target.ids", "wb") as targets:
        for chunk in _chunks(iter(corpus)):
            for side, (file, strings) in enumerate(zip((sources, targets), zip(*chunk))):
                ids = tokenizers[side].tokenize(tf.constant(strings))
                file.write(ids.flat_values.numpy().astype("<i4").tobytes())
                lengths[side].append(ids.row_lengths().numpy())
    if not lengths[0]:
        raise ValueError("Expected a corpus with sentence pairs. Received: one without any. Give files with text.")
    for name, side in zip(_SIDES, lengths):
        np.save(directory / f"{name}.offsets.npy", np.concatenate([[0], *side]).cumsum(dtype=np.int64))


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
