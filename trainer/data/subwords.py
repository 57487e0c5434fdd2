"""tensor2tensor's subword vocabularies as TensorFlow ops."""

import hashlib
import os
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tensorflow as tf

from t2t_relpos.t2t.subwords import (
    EOS_ID,
    ESCAPED,
    LARGEST_CODE_POINT,
    PAD_ID,
    UNDEFINED,
    SubwordVocabulary,
    alphanumeric_characters,
)
from trainer import atomic_files
from trainer.data.longest_match import LongestMatch

# Where to look for a character that the vocabulary does not have, to mark where the pieces of a
# string end.
_PRIVATE_USE = range(0xE000, LARGEST_CODE_POINT + 1)


class SubwordTokenizer:
    """A vocabulary of tensor2tensor's `SubwordTextEncoder` as TensorFlow ops: pad 0, eos 1, no unk.

    Gives the ids and the strings that tensor2tensor gives; EOS is added, and truncated. A graph
    that tokenizes holds the vocabulary in itself, so that it can be exported from any tf.Module,
    and be served with only `tensorflow`.

    Args:
        vocabulary: the content of the vocabulary file, bytes.

    Raises:
        ValueError: if the bytes are no vocabulary of tensor2tensor, or half of one: see
            `t2t_relpos.t2t.subwords.SubwordVocabulary`.

    Reference:
        tensor2tensor 1.15.7, `data_generators/text_encoder.py`.

    Example:

    >>> subtokens = ["<pad>_", "<EOS>_", "the_", "cat_"]
    >>> subtokens += sorted(set(r"\\_u;0123456789").union(*subtokens))
    >>> tokenizer = SubwordTokenizer("".join(f"'{subtoken}'\\n" for subtoken in subtokens).encode())
    >>> ids = tokenizer.tokenize(tf.constant(["the cat", "cats!"]))
    >>> ids[0].numpy().tolist()
    [2, 3, 1]
    >>> tokenizer.detokenize(ids).numpy().tolist()
    [b'the cat', b'cats!']
    """

    def __init__(self, vocabulary: bytes):
        self._content = vocabulary
        self._vocabulary = SubwordVocabulary.from_bytes(vocabulary)
        self._match = LongestMatch(self._vocabulary.ids)
        self._alphabet = _CodePoints(map(ord, self._vocabulary.alphabet))
        self._alphanumeric = _CodePoints(map(ord, alphanumeric_characters()))
        # Ids that the vocabulary does not have are nothing.
        self._subtokens = np.array(
            [subtoken.encode() for subtoken in (*self._vocabulary.subtokens, "")], object
        )
        self._border = next(chr(i) for i in _PRIVATE_USE if chr(i) not in self._vocabulary.alphabet)

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return len(self._vocabulary)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the vocabulary and of the version of Unicode: tokenizers with the same one
        give the same ids.
        """
        return hashlib.sha256(self._content + unicodedata.unidata_version.encode()).hexdigest()

    def tokenize(self, strings: tf.Tensor) -> tf.RaggedTensor:
        """Splits strings into ids.

        Args:
            strings: string `[B]`. Bytes that are not UTF-8 count as U+FFFD.

        Returns:
            int32 RaggedTensor `[B, (ids)]`; every row ends in EOS.
        """
        with tf.device("CPU"):
            tokens = self._tokens(tf.strings.unicode_decode(strings, "UTF-8"))
            words, place = tf.unique(tokens.values)
            ids = tokens.with_values(tf.gather(self._match(words), place)).merge_dims(1, 2)
            return tf.concat([ids, tf.fill([ids.nrows(), 1], EOS_ID)], axis=1)

    def detokenize(self, ids: tf.RaggedTensor | tf.Tensor) -> tf.Tensor:
        """Joins ids into strings.

        Args:
            ids: int32 `[B, (ids)]`, ragged or padded with 0. Every row counts up to its first EOS;
                padding is left out.

        Returns:
            string `[B]`. A character that UTF-8 can't hold (half of a surrogate pair, escaped) is
            U+FFFD.

        Raises:
            ValueError: outside of a graph, for ids that the vocabulary does not have. In a graph
                they count as nothing.
        """
        with tf.device("CPU"):
            if isinstance(ids, tf.RaggedTensor):
                ids = ids.to_tensor(PAD_ID)
            ids = tf.cast(ids, tf.int32)
            is_known = (ids >= 0) & (ids < self.vocab_size)
            if tf.executing_eagerly():
                self._check_all(is_known, ids)
            is_text = (tf.cumsum(tf.cast(ids == EOS_ID, tf.int32), axis=1) == 0) & (ids != PAD_ID)
            subtokens = tf.gather(self._subtokens, tf.where(is_known, ids, self.vocab_size))
            return self._joined(tf.strings.reduce_join(tf.where(is_text, subtokens, ""), axis=1))

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """The subtoken of every id, as the vocabulary file spells it.

        Args:
            ids: int32, of any shape.

        Returns:
            string, as `ids`; "" for padding and for ids that the vocabulary does not have.
        """
        with tf.device("CPU"):
            is_piece = (ids > PAD_ID) & (ids < self.vocab_size)
            return tf.gather(self._subtokens, tf.where(is_piece, ids, self.vocab_size))

    def save(self, path: str | os.PathLike):
        """Writes the vocabulary file, as `from_file` and tensor2tensor read it."""
        with atomic_files.whole_file(path) as aside:
            aside.write_bytes(self._content)

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> "SubwordTokenizer":
        """Reads a vocabulary file of tensor2tensor.

        Raises:
            ValueError: if there is no such file; and as the class itself.
        """
        path = Path(path)
        if not path.is_file():
            raise ValueError(
                f"Expected a vocabulary of tensor2tensor at {path}. Received: no such file. Check "
                "the path."
            )
        try:
            return cls(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def _tokens(self, characters):
        """Code points, ragged `[B, (characters)]`, to the tokens that t2t looks up: escaped,
        ragged `[B, (tokens)]`.
        """
        characters, rows, row_count = (
            characters.values,
            characters.value_rowids(),
            characters.nrows(),
        )
        begins = _changes(rows) | _changes(self._alphanumeric.contain(characters))
        first = tf.where(begins)[:, 0]
        token_rows = tf.gather(rows, first)
        length = tf.concat([first[1:], tf.shape(rows, tf.int64)], 0)[: tf.size(first)] - first
        is_space = (length == 1) & (tf.gather(characters, first) == ord(" "))
        opens_row = _changes(token_rows)
        is_kept = ~is_space | opens_row | tf.roll(opens_row, -1, 0)

        distinct, place = tf.unique(characters)
        escaped = tf.gather(self._escaped(distinct), place)
        tokens = tf.strings.unsorted_segment_join(escaped, _numbered(begins), tf.size(first))
        tokens, token_rows = tf.boolean_mask(tokens, is_kept), tf.boolean_mask(token_rows, is_kept)
        return tf.RaggedTensor.from_value_rowids(
            tf.strings.join([tokens, "_"]), token_rows, row_count, validate=False
        )

    def _escaped(self, characters):
        """Code points `[n]` to strings of characters that the vocabulary has."""
        number = tf.strings.join(["\\", tf.strings.as_string(characters), ";"])
        is_plain = self._alphabet.contain(characters) & (characters != ord("\n"))
        escaped = tf.where(is_plain, _strings(characters), number)
        escaped = tf.where(characters == ord("_"), "\\u", escaped)
        return tf.where(characters == ord("\\"), "\\\\", escaped)

    def _joined(self, texts):
        """Subtokens run together, `[B]`, to the strings that they stand for."""
        bordered = tf.strings.regex_replace(
            texts, f"({ESCAPED}|_)", rf"{self._border}\1{self._border}"
        )
        pieces = tf.strings.split(bordered, self._border)
        pieces, rows, row_count = pieces.values, pieces.value_rowids(), pieces.nrows()
        is_end = pieces == "_"
        begins = is_end | _changes(rows)
        token_rows = tf.boolean_mask(rows, begins)
        unescaped = tf.where(is_end, "", _unescaped(pieces))
        tokens = tf.strings.unsorted_segment_join(unescaped, _numbered(begins), tf.size(token_rows))

        is_token = tokens != ""
        tokens, token_rows = (
            tf.boolean_mask(tokens, is_token),
            tf.boolean_mask(token_rows, is_token),
        )
        first = tf.strings.unicode_decode(
            tf.strings.substr(tokens, 0, 1, unit="UTF8_CHAR"), "UTF-8"
        ).values
        is_word = self._alphanumeric.contain(first)
        follows_word = tf.roll(is_word, 1, 0) & ~_changes(token_rows)
        spaced = tf.where(is_word & follows_word, tf.strings.join([" ", tokens]), tokens)
        return tf.strings.unsorted_segment_join(spaced, token_rows, row_count)

    def _check_all(self, is_known, ids):
        wrong = tf.boolean_mask(ids, ~is_known)
        if tf.size(wrong):
            raise ValueError(
                f"Expected ids from 0 to {self.vocab_size - 1}, the vocabulary's. Received: "
                f"{int(wrong[0])}. "
                "Use the tokenizer that the ids were made with."
            )


class _CodePoints:
    """A set of code points, held as the places where membership changes."""

    def __init__(self, members: Iterable[int]):
        is_member = np.zeros(LARGEST_CODE_POINT + 3, np.int8)
        is_member[np.fromiter(members, np.int64) + 1] = 1
        self._changes = np.flatnonzero(np.diff(is_member)).astype(np.int32)

    def contain(self, characters):
        return tf.searchsorted(self._changes, characters, side="right") % 2 == 1


def _changes(values):
    """Where a value is not the one before, and at the first: bool, as `values` `[n]`."""
    return (values != tf.roll(values, 1, 0)) | (tf.range(tf.size(values)) == 0)


def _numbered(begins):
    """The number of the segment that every element is in, from where segments begin: `[n]`."""
    return tf.cumsum(tf.cast(begins, tf.int64)) - 1


def _strings(characters):
    """Code points `[n]` to strings of one character each."""
    return tf.strings.unicode_encode(characters[:, None], "UTF-8")


def _unescaped(pieces):
    """The character that each piece stands for if it is an escape, or else the piece."""
    is_number = tf.strings.regex_full_match(pieces, r"\\[0-9]+;")
    digits = tf.strings.regex_replace(
        tf.where(is_number, pieces, "\\0;"), r"^\\0*([0-9]+);$", r"\1"
    )
    # Seven digits exceed Unicode.
    number = tf.strings.to_number(
        tf.where(tf.strings.length(digits) <= 7, digits, "9999999"), tf.int32
    )
    character = _strings(tf.where(number <= LARGEST_CODE_POINT, number, ord(UNDEFINED)))
    pieces = tf.where(is_number, character, pieces)
    pieces = tf.where(pieces == "\\u", "_", pieces)
    return tf.where(pieces == "\\\\", "\\", pieces)
