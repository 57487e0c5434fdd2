"""Tokenizer for tensor2tensor's subword vocabularies, as TensorFlow ops."""

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf

from t2t_relpos.t2t.subwords import (
    ESCAPED,
    LARGEST_CODE_POINT,
    UNDEFINED,
    SubwordVocabulary,
    alphanumeric_characters,
)

from .tokenizer import EOS_ID, PAD_ID, Tokenizer

_PRIVATE_USE = range(0xE000, LARGEST_CODE_POINT + 1)
# Code points have 21 bits.
_CHARACTER_BITS = 21


class SubwordTokenizer(Tokenizer):
    """tensor2tensor's `SubwordTextEncoder` as TensorFlow ops, with pad 0, eos 1 and no unk.

    Ids and strings are equal to those of tensor2tensor. `tokenize` adds EOS and `detokenize`
    removes it. `detokenize` replaces halves of surrogate pairs by U+FFFD. An exported graph
    requires only `tensorflow`.

    Args:
        content: the content of the vocabulary file, bytes.

    Raises:
        ValueError: if the bytes are not a vocabulary of tensor2tensor, or if it is incomplete: see
            `t2t_relpos.t2t.subwords.SubwordVocabulary`.

    Reference:
        tensor2tensor 1.15.7, `data_generators/text_encoder.py`.

    Example:

    >>> import tensorflow as tf
    >>> from trainer.data.subword_tokenizer import SubwordTokenizer
    >>> subtokens = ["<pad>_", "<EOS>_", "the_", "cat_"]
    >>> subtokens += sorted(set(r"\\_u;0123456789").union(*subtokens))
    >>> tokenizer = SubwordTokenizer("".join(f"'{subtoken}'\\n" for subtoken in subtokens).encode())
    >>> ids = tokenizer.tokenize(tf.constant(["the cat", "cats!"]))
    >>> ids[0].numpy().tolist()
    [2, 3, 1]
    >>> tokenizer.detokenize(ids).numpy().tolist()
    [b'the cat', b'cats!']
    """

    # No token is unknown, because every character can be escaped.
    unk_id = PAD_ID
    kind = "subwords"
    file_kind = "a vocabulary of tensor2tensor"

    def __init__(self, content: bytes):
        super().__init__(content)
        vocabulary = SubwordVocabulary.from_bytes(content)
        self.names = vocabulary.subtokens
        self._match = LongestMatch(vocabulary.ids)
        self._alphabet = _CodePoints(map(ord, vocabulary.alphabet))
        self._alphanumeric = _CodePoints(map(ord, alphanumeric_characters()))
        # The last entry is for ids outside the vocabulary.
        self._subtokens = np.array([name.encode() for name in (*self.names, "")], object)
        # A character that no subtoken contains, to separate the pieces of a string.
        self._separator = next(chr(i) for i in _PRIVATE_USE if chr(i) not in vocabulary.alphabet)

    @property
    def fingerprint(self) -> str:
        # The set of letters depends on Python's version of Unicode.
        return hashlib.sha256(self._content + unicodedata.unidata_version.encode()).hexdigest()

    def tokenize(self, strings: tf.Tensor) -> tf.RaggedTensor:
        with tf.device("CPU"):
            tokens = self._tokens(tf.strings.unicode_decode(strings, "UTF-8"))
            words, index = tf.unique(tokens.values)
            ids = tokens.with_values(tf.gather(self._match(words), index)).merge_dims(1, 2)
            return tf.concat([ids, tf.fill([ids.nrows(), 1], EOS_ID)], axis=1)

    def detokenize(self, ids: tf.RaggedTensor | tf.Tensor) -> tf.Tensor:
        with tf.device("CPU"):
            ids, is_text = self._split_text(ids)
            subtokens = tf.gather(self._subtokens, tf.where(is_text, ids, self.vocab_size))
            return self._joined(tf.strings.reduce_join(subtokens, axis=1))

    def pieces(self, ids: tf.Tensor) -> tf.Tensor:
        with tf.device("CPU"):
            is_piece = self._is_known(ids) & (ids != PAD_ID)
            return tf.gather(self._subtokens, tf.where(is_piece, ids, self.vocab_size))

    def _tokens(self, characters):
        """Splits ragged code points into escaped tokens, as tensor2tensor does before the match."""
        rows, row_count = characters.value_rowids(), characters.nrows()
        characters = characters.values
        begins = _changes(rows) | _changes(self._alphanumeric.contain(characters))
        first = tf.where(begins)[:, 0]
        token_rows = tf.gather(rows, first)
        length = tf.concat([first[1:], tf.shape(rows, tf.int64)], 0)[: tf.size(first)] - first
        is_space = (length == 1) & (tf.gather(characters, first) == ord(" "))
        opens_row = _changes(token_rows)
        is_kept = ~is_space | opens_row | tf.roll(opens_row, -1, 0)

        distinct, index = tf.unique(characters)
        escaped = tf.gather(self._escaped(distinct), index)
        tokens = tf.strings.unsorted_segment_join(escaped, _segment_ids(begins), tf.size(first))
        return tf.RaggedTensor.from_value_rowids(
            tf.strings.join([tf.boolean_mask(tokens, is_kept), "_"]),
            tf.boolean_mask(token_rows, is_kept),
            row_count,
            validate=False,
        )

    def _escaped(self, characters):
        """Converts code points `[n]` to strings, and escapes characters outside the vocabulary."""
        number = tf.strings.join(["\\", tf.strings.as_string(characters), ";"])
        is_plain = self._alphabet.contain(characters) & (characters != ord("\n"))
        escaped = tf.where(is_plain, _strings(characters), number)
        escaped = tf.where(characters == ord("_"), "\\u", escaped)
        return tf.where(characters == ord("\\"), "\\\\", escaped)

    def _joined(self, texts):
        """Converts concatenated subtokens `[B]` to the strings that they encode."""
        separated = tf.strings.regex_replace(
            texts, f"({ESCAPED}|_)", rf"{self._separator}\1{self._separator}"
        )
        pieces = tf.strings.split(separated, self._separator)
        pieces, rows, row_count = pieces.values, pieces.value_rowids(), pieces.nrows()
        is_end = pieces == "_"
        begins = is_end | _changes(rows)
        token_rows = tf.boolean_mask(rows, begins)
        unescaped = tf.where(is_end, "", _unescaped(pieces))
        tokens = tf.strings.unsorted_segment_join(
            unescaped, _segment_ids(begins), tf.size(token_rows)
        )

        is_token = tokens != ""
        tokens = tf.boolean_mask(tokens, is_token)
        token_rows = tf.boolean_mask(token_rows, is_token)
        first = tf.strings.substr(tokens, 0, 1, unit="UTF8_CHAR")
        is_word = self._alphanumeric.contain(tf.strings.unicode_decode(first, "UTF-8").values)
        follows_word = tf.roll(is_word, 1, 0) & ~_changes(token_rows)
        spaced = tf.where(is_word & follows_word, tf.strings.join([" ", tokens]), tokens)
        return tf.strings.unsorted_segment_join(spaced, token_rows, row_count)


class _CodePoints:
    """A set of code points, stored as the code points where membership changes."""

    def __init__(self, members: Iterable[int]):
        is_member = np.zeros(LARGEST_CODE_POINT + 3, np.int8)
        is_member[np.fromiter(members, np.int64) + 1] = 1
        self._changes = np.flatnonzero(np.diff(is_member)).astype(np.int32)

    def contain(self, characters):
        return tf.searchsorted(self._changes, characters, side="right") % 2 == 1


def _changes(values):
    """Returns whether each value differs from the previous one, True for the first, bool `[n]`."""
    return (values != tf.roll(values, 1, 0)) | (tf.range(tf.size(values)) == 0)


def _segment_ids(begins):
    """Returns the segment id of every element. `begins` is True where a segment begins."""
    return tf.cumsum(tf.cast(begins, tf.int64)) - 1


def _strings(characters):
    """Converts code points `[n]` to strings of one character each."""
    return tf.strings.unicode_encode(characters[:, None], "UTF-8")


def _unescaped(pieces):
    """Replaces every piece that is an escape sequence with its character."""
    is_number = tf.strings.regex_full_match(pieces, r"\\[0-9]+;")
    digits = tf.strings.regex_replace(
        tf.where(is_number, pieces, "\\0;"), r"^\\0*([0-9]+);$", r"\1"
    )
    # Longer numbers could overflow int32. 9999999 is above all code points.
    number = tf.strings.to_number(
        tf.where(tf.strings.length(digits) <= 7, digits, "9999999"), tf.int32
    )
    character = _strings(tf.where(number <= LARGEST_CODE_POINT, number, ord(UNDEFINED)))
    pieces = tf.where(is_number, character, pieces)
    pieces = tf.where(pieces == "\\u", "_", pieces)
    return tf.where(pieces == "\\\\", "\\", pieces)


class LongestMatch:
    """Splits words into subtokens from left to right, each time taking the longest match.

    All characters of all words are processed in parallel. One loop descends a trie to find the
    longest subtoken that starts at every character. A second loop marks the characters where the
    subtokens of a word start: its first character, and every character after a marked subtoken.

    tensorflow_text's WordPiece ops don't accept every vocabulary. The fast one does not support
    subtokens of 256 bytes or NUL characters. The other one requires a lookup resource and is slow
    on long words.

    Args:
        ids: ids by subtoken. Subtokens must not be empty.

    Example:

    >>> import tensorflow as tf
    >>> from trainer.data.subword_tokenizer import LongestMatch
    >>> match = LongestMatch({"a": 2, "b": 3, "ab": 4, "abab": 5})
    >>> match(tf.constant(["abaab", "", "abababb"])).to_list()
    [[4, 2, 4], [], [5, 4, 3]]
    """

    def __init__(self, ids: Mapping[str, int]):
        children, node_ids = _make_trie(ids)
        self._edges = np.array(sorted(children), np.int64)
        self._children = np.array([children[edge] for edge in sorted(children)], np.int64)
        self._node_ids = np.array(node_ids, np.int32)

    def __call__(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of words `[W]`, a RaggedTensor `[W, (ids)]`.

        A character at which no subtoken starts has the id -1.
        """
        characters = tf.strings.unicode_decode(words, "UTF-8")
        position = tf.range(tf.size(characters.values), dtype=tf.int64)
        word = characters.value_rowids()
        remaining = tf.gather(characters.row_limits(), word) - position
        lengths, ids = self._longest_matches(tf.cast(characters.values, tf.int64), remaining)
        is_first = position == tf.gather(characters.row_starts(), word)
        is_start = _mark_starts(is_first, position + lengths, tf.reduce_max(remaining))
        return tf.RaggedTensor.from_value_rowids(
            tf.boolean_mask(ids, is_start),
            tf.boolean_mask(word, is_start),
            characters.nrows(),
            validate=False,
        )

    def _longest_matches(self, characters, remaining):
        """Returns length and id of the longest subtoken that starts at every character, `[n]` each.

        `remaining` is the number of characters from each character to the end of its word, `[n]`.
        """

        def descend(depth, position, node, lengths, ids):
            edge = _edge(node, tf.gather(characters, position + depth))
            found = tf.minimum(tf.searchsorted(self._edges, edge), len(self._edges) - 1)
            exists = tf.gather(self._edges, found) == edge
            position = tf.boolean_mask(position, exists)
            node = tf.gather(self._children, tf.boolean_mask(found, exists))
            depth += 1
            node_ids = tf.gather(self._node_ids, node)
            is_subtoken = node_ids >= 0
            matched = tf.boolean_mask(position, is_subtoken)[:, None]
            length = tf.fill(tf.shape(matched)[:1], depth)
            lengths = tf.tensor_scatter_nd_update(lengths, matched, length)
            matched_ids = tf.boolean_mask(node_ids, is_subtoken)
            ids = tf.tensor_scatter_nd_update(ids, matched, matched_ids)
            continues = tf.gather(remaining, position) > depth
            position, node = tf.boolean_mask(position, continues), tf.boolean_mask(node, continues)
            return depth, position, node, lengths, ids

        size = tf.size(characters)
        position = tf.range(tf.cast(size, tf.int64))
        root, length, no_id = tf.zeros_like(position), tf.ones_like(position), tf.fill([size], -1)
        state = tf.constant(0, tf.int64), position, root, length, no_id
        *_, lengths, ids = _loop(lambda depth, position, *_: tf.size(position) > 0, descend, state)
        return lengths, ids


def _mark_starts(is_first, following, longest):
    """Returns whether a subtoken starts at each character, bool `[n]`.

    After iteration r, the first 2^r subtokens of every word are marked. The number of iterations is
    therefore logarithmic in the length of the longest word. `following` is the index of the
    character after the longest subtoken at each character.
    """

    def double(marked, is_start, following):
        targets = tf.boolean_mask(following, is_start)[:, None]
        is_start = tf.tensor_scatter_nd_update(
            is_start, targets, tf.ones(tf.shape(targets)[:1], tf.bool)
        )
        return marked * 2, is_start, tf.gather(following, following)

    # The last subtoken of a word is followed by the first character of the next word, which is
    # already marked. The last word is followed by an additional entry.
    end = tf.size(following, tf.int64)[None]
    is_start, following = tf.concat([is_first, [False]], 0), tf.concat([following, end], 0)
    state = tf.constant(1, tf.int64), is_start, following
    _, is_start, _ = _loop(lambda marked, *_: marked < longest, double, state)
    return is_start[:-1]


def _loop(condition, body, state):
    """Runs tf.while_loop on tensors whose sizes change."""
    shapes = tuple(tf.TensorShape([None] * tensor.shape.rank) for tensor in state)
    return tf.while_loop(condition, body, state, shape_invariants=shapes)


def _edge(node, character):
    return node * (1 << _CHARACTER_BITS) + character


def _make_trie(ids):
    """Returns a trie from node 0: {edge: node}, and the id of the subtoken at each node or -1."""
    children, node_ids = {}, [-1]
    for subtoken, subtoken_id in ids.items():
        node = 0
        for character in subtoken:
            edge = _edge(node, ord(character))
            if edge not in children:
                children[edge] = len(node_ids)
                node_ids.append(-1)
            node = children[edge]
        node_ids[node] = subtoken_id
    return children, node_ids
