"""Base class of tokenizers, which convert strings to ids and back inside a TensorFlow graph."""

import abc
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import tensorflow as tf

from t2t_relpos._conventions import EOS_ID, PAD_ID

from .. import atomic_files

# SentencePiece only. tensor2tensor's subwords can escape every character.
UNK_ID = 2


class Tokenizer(abc.ABC):
    """Abstract base class of tokenizers as TensorFlow ops, with pad 0 and eos 1.

    A graph that tokenizes contains the vocabulary. It can be exported from any tf.Module and served
    without this project. `content` is that of the vocabulary file, and ValueError is raised if it
    is not of this kind.

    Attributes:
        names: the name of every id, as in the vocabulary file.
        unk_id: id of tokens outside the vocabulary.
        byte_ids: ids that stand for a single byte.
        normalization: name of the rule that `tokenize` applies to characters.
        kind: kind of tokenizer in config.json.
        file_kind: description of the vocabulary file in error messages.
    """

    names: Sequence[str]
    unk_id: int
    byte_ids: range = range(0)
    normalization: str = "identity"
    kind: str
    file_kind: str

    def __init__(self, content: bytes):
        self._content = content

    @abc.abstractmethod
    def tokenize(self, strings: tf.Tensor) -> tf.RaggedTensor:
        """Splits strings `[B]` into ids, an int32 RaggedTensor `[B, (ids)]` with EOS.

        Invalid UTF-8 is replaced by U+FFFD.
        """

    @abc.abstractmethod
    def detokenize(self, ids: tf.RaggedTensor | tf.Tensor) -> tf.Tensor:
        """Joins ids `[B, (ids)]`, ragged or padded with 0, into strings `[B]`.

        Padding, the first EOS of a row, and all ids after it are ignored. Ids outside the
        vocabulary are ignored too in a graph. In eager mode, they raise ValueError. Graphs that get
        ids of others check them first, as the signatures of exports do.
        """

    @abc.abstractmethod
    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the names of ids of any shape, "" for padding and ids outside the vocabulary."""

    def count_normalized(self, texts: Sequence[str]) -> int:
        """Returns the number of texts that normalization changes, apart from spaces."""
        return 0

    @property
    def byte_fallback(self) -> bool:
        """Whether characters outside the vocabulary are split into bytes."""
        return bool(self.byte_ids)

    @property
    def vocab_size(self) -> int:
        """Number of ids in the vocabulary."""
        return len(self.names)

    @property
    def sha256(self) -> str:
        """SHA-256 of the vocabulary file."""
        return hashlib.sha256(self._content).hexdigest()

    @property
    def fingerprint(self) -> str:
        """Digest of the vocabulary. Tokenizers with equal fingerprints give the same ids."""
        return self.sha256

    def save(self, path: str | os.PathLike):
        """Writes the vocabulary file."""
        with atomic_files.atomic_file(path) as temporary:
            temporary.write_bytes(self._content)

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> Self:
        """Returns a tokenizer with the vocabulary of a file, or raises ValueError."""
        path = Path(path)
        if not path.is_file():
            raise ValueError(
                f"Expected {cls.file_kind} at {path}. Received: no such file. Check the path."
            )
        try:
            return cls(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def _is_known(self, ids):
        return (ids >= 0) & (ids < self.vocab_size)

    def _split_text(self, ids):
        """Returns dense ids, and whether each id is text: known, not padding, and before EOS."""
        if isinstance(ids, tf.RaggedTensor):
            ids = ids.to_tensor(PAD_ID)
        ids = tf.cast(ids, tf.int32)
        is_known = self._is_known(ids)
        if tf.executing_eagerly() and not tf.reduce_all(is_known):
            raise ValueError(
                f"Expected ids from 0 to {self.vocab_size - 1}, as in the vocabulary. Received: "
                f"{int(tf.boolean_mask(ids, ~is_known)[0])}. Use the tokenizer that made the ids."
            )
        is_before_eos = tf.cumsum(tf.cast(ids == EOS_ID, tf.int32), axis=1) == 0
        return ids, is_known & is_before_eos & (ids != PAD_ID)


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of source and target: one object if they share a vocabulary.

    Iteration yields the tokenizer of the source, then that of the target.

    Args:
        source: tokenizer of the source.
        target: tokenizer of the target.
    """

    source: Tokenizer
    target: Tokenizer

    @classmethod
    def shared(cls, tokenizer: Tokenizer) -> Self:
        """Returns `Tokenizers` with one vocabulary for both sides."""
        return cls(tokenizer, tokenizer)

    def __iter__(self) -> Iterator[Tokenizer]:
        return iter((self.source, self.target))

    @property
    def is_shared(self) -> bool:
        """Whether source and target share a vocabulary."""
        return self.source is self.target

    @property
    def by_side(self) -> dict[str, Tokenizer]:
        """The tokenizers by side: "source" and "target", or "" for a shared one."""
        if self.is_shared:
            return {"": self.target}
        return {"source": self.source, "target": self.target}

    @property
    def sizes(self) -> dict[str, int | None]:
        """The settings `vocab_size` and `source_vocab_size` of a `TransformerConfig`."""
        source = None if self.is_shared else self.source.vocab_size
        return {"vocab_size": self.target.vocab_size, "source_vocab_size": source}
