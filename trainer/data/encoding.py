"""Encoding of corpora as ids in memory-mapped files. Memory use does not grow with the corpus."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf
from absl import logging

from .. import atomic_files
from .corpus import Corpus, digest
from .text_report import TextCounts
from .tokenizer import EOS_ID, PAD_ID, Tokenizers

_PAIRS_PER_CALL = 4096  # Pairs per call of the tokenizer.
# Fields of IdSequences. Each is stored in a binary file without header.
_ARRAYS = {"ids": np.int32, "offsets": np.int64}
_REPORT = "report.json"  # The counts of each side.
_ROWS_PER_CHECK = 1 << 16


@dataclass(frozen=True)
class IdSequences:
    """Concatenated sequences of int32 ids: sequence i is `ids[offsets[i]:offsets[i + 1]]`."""

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
        """Returns the sequences `rows`, int32 `[rows, width]`, padded with 0.

        By default, `width` is the length of the longest of them.
        """
        starts, lengths = self.offsets[rows], self.lengths_of(rows)
        columns = np.arange(lengths.max() if width is None else width)
        positions = np.minimum(starts[:, None] + columns, len(self.ids) - 1)
        return np.where(columns < lengths[:, None], self.ids[positions], np.int32(PAD_ID))


@dataclass(frozen=True)
class EncodedPairs:
    """The ids of a corpus. Sequence i of `targets` translates sequence i of `sources`.

    The texts of a language model are targets, and `sources` is None. "Pair" stands for them too.
    `counts` has the name of each side in the `Corpus`.
    """

    sources: IdSequences | None
    targets: IdSequences
    counts: dict[str, TextCounts] = dataclasses.field(default_factory=dict)

    def __len__(self):
        return len(self.targets)

    @property
    def inputs(self) -> dict[str, IdSequences]:
        """The sides by their names in batches: "inputs" if there are sources, and "targets"."""
        sources = {} if self.sources is None else {"inputs": self.sources}
        return sources | {"targets": self.targets}

    @property
    def unit(self) -> str:
        """What the rows are called in reports: "pairs", or "texts" of a language model."""
        return "texts" if self.sources is None else "pairs"

    @property
    def lengths(self) -> np.ndarray:
        """Number of ids of the longer side of every pair, including EOS, int64 `[pairs]`."""
        return np.max([side.lengths for side in self.inputs.values()], axis=0)

    def lengths_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the number of ids of the pairs `rows`, with EOS, int64 `[sides, rows]`."""
        return np.stack([side.lengths_of(rows) for side in self.inputs.values()])


def encode_pairs(
    corpus: Corpus, tokenizers: Tokenizers, cache_dir: str | os.PathLike | None = None
) -> EncodedPairs:
    """Returns the ids of a corpus.

    Args:
        corpus: sentence pairs, or texts. They are read once, as a stream.
        tokenizers: tokenizers of both sides. Texts require a shared one.
        cache_dir: directory to cache the ids in. Later calls with the same pairs and tokenizers
            read them from there, unless a file was cut: then the corpus is encoded again. Ids of
            other corpora in it are removed. By default they are not cached.

    Raises:
        ValueError: if the corpus has no pair.
    """
    if cache_dir is None:
        with tempfile.TemporaryDirectory(prefix="ids-") as directory:
            _write(corpus, tokenizers, Path(directory))
            # Memory-mapped files stay readable after they are deleted.
            return _load(Path(directory), corpus.sides)
    vocabularies = dict.fromkeys(tokenizer.fingerprint for tokenizer in tokenizers)
    key = digest("int32 ids, int64 offsets", corpus.fingerprint, *vocabularies)
    directory = Path(cache_dir) / f"ids-{key[:16]}"
    if directory.is_dir():
        try:
            return _load(directory, corpus.sides)
        except (OSError, ValueError) as error:
            logging.warning("Encoding the text again, because %s is damaged: %s", directory, error)
    with atomic_files.atomic_directory(directory) as temporary:
        _write(corpus, tokenizers, temporary)
    for other in directory.parent.glob("ids-*"):
        if other != directory:
            atomic_files.remove_directory(other)
    return _load(directory, corpus.sides)


def _write(corpus, tokenizers, directory):
    """Writes the arrays of each side's `IdSequences` to binary files."""
    with contextlib.ExitStack() as stack:
        files = [
            [stack.enter_context(open(directory / f"{side}.{name}", "wb")) for name in _ARRAYS]
            for side in corpus.sides
        ]
        ends, totals = [0 for _ in files], [TextCounts() for _ in files]
        for _, offsets in files:
            offsets.write(np.int64(0).tobytes())
        for sides in _tokenize_chunks(corpus, tokenizers):
            for i, (ids, counts) in enumerate(sides):
                offsets = ends[i] + np.cumsum(ids.row_lengths().numpy())
                ends[i] = offsets[-1]
                totals[i] += counts
                files[i][0].write(ids.flat_values.numpy().tobytes())
                files[i][1].write(offsets.tobytes())
    if not totals[0].lines:
        raise ValueError(
            "Expected a corpus with sentence pairs. Received: an empty corpus. Use files with text."
        )
    sides = {side: dataclasses.asdict(counts) for side, counts in zip(corpus.sides, totals)}
    (directory / _REPORT).write_text(json.dumps(sides, indent=2) + "\n", encoding="utf-8")


def _tokenize_chunks(corpus, tokenizers) -> Iterator[list[tuple[tf.RaggedTensor, TextCounts]]]:
    """Yields the ids and counts of each side of every chunk of pairs, in order.

    Chunks are tokenized in parallel. At most one chunk per core is buffered.
    """

    def tokenize(tokenizer, texts):
        # The exported graph strips sentences too.
        ids = tokenizer.tokenize(tf.strings.strip(texts))
        counts = _count_ids(ids.flat_values.numpy(), len(texts), tokenizer)
        normalized = tokenizer.count_normalized(texts)
        return ids, dataclasses.replace(counts, normalized=normalized)

    def tokenize_pairs(chunk):
        return list(map(tokenize, tokenizers, zip(*chunk)))

    pairs, workers = iter(corpus), os.cpu_count() or 1
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        waiting = collections.deque()
        while chunk := list(itertools.islice(pairs, _PAIRS_PER_CALL)):
            waiting.append(pool.submit(tokenize_pairs, chunk))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        for future in waiting:
            yield future.result()


def _count_ids(ids, lines, tokenizer):
    """Returns the counts of concatenated ids."""
    counts = TextCounts()
    # Comparisons of all ids of a large corpus would need memory for as many results.
    for start in range(0, len(ids), _ROWS_PER_CHECK):
        block = ids[start : start + _ROWS_PER_CHECK]
        is_byte = (block >= tokenizer.byte_ids.start) & (block < tokenizer.byte_ids.stop)
        unknown, byte_pieces = np.count_nonzero(block == tokenizer.unk_id), is_byte.sum()
        counts += TextCounts(0, len(block), int(unknown), int(byte_pieces))
    return dataclasses.replace(counts, lines=lines, tokens=counts.tokens - lines)


def _load(directory, sides):
    """Returns the `EncodedPairs` of a directory. Raises OSError or ValueError for damaged files."""
    try:
        report = json.loads((directory / _REPORT).read_text(encoding="utf-8"))
        counts = {side: TextCounts(**report[side]) for side in sides}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{_REPORT} has no {error}") from error

    def read(side):
        arrays = {
            name: np.memmap(directory / f"{side}.{name}", dtype, mode="r")
            for name, dtype in _ARRAYS.items()
        }
        found = IdSequences(**arrays)
        lines, ids = counts[side].lines, counts[side].lines + counts[side].tokens
        sizes = len(found), len(found.ids), found.offsets[-1]
        if sizes != (lines, ids, ids) or found.ids[-1] != EOS_ID:
            raise ValueError(f"{side}.ids or {side}.offsets is not that of {_REPORT}")
        return found

    *sources, targets = map(read, sides)
    return EncodedPairs(sources[0] if sources else None, targets, counts)
