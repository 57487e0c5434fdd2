"""tensor2tensor subword vocabularies in plain Python.

This implementation is slow but requires no framework. `trainer.data.subword_tokenizer` is the
equivalent for TensorFlow graphs.
"""

import dataclasses
import functools
import itertools
import re
import unicodedata

ESCAPE_CHARACTERS = frozenset("\\_u;0123456789")
# Escape sequences: `\u` is `_`, `\\` is `\`, `\233;` is é.
ESCAPED = r"\\u|\\\\|\\[0-9]+;"
LARGEST_CODE_POINT = 0x10FFFF
# Replaces a number that is not a code point.
UNDEFINED = "\u3013"

_RESERVED = (("<pad>_", "<pad>"), ("<EOS>_", "<EOS>"))
_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class SubwordVocabulary:
    r"""A vocabulary equivalent to tensor2tensor's `SubwordTextEncoder`.

    A string is split between alphanumeric and other characters. A single space between two words is
    dropped. In every token, `\`, `_` and unknown characters are escaped, and `_` is appended. Each
    token is then split greedily into the longest matching subtokens, from left to right.

    Args:
        subtokens: the subtokens in the order of their ids, starting with "<pad>_" and "<EOS>_".
            An empty subtoken is an unused id. The last of several equal subtokens is used.

    Raises:
        ValueError: if the first two subtokens are not "<pad>_" and "<EOS>_", or if a character
            of the vocabulary or of escape sequences is not a subtoken by itself.

    Reference:
        tensor2tensor 1.15.7, `data_generators/text_encoder.py` and `data_generators/tokenizer.py`.

    Example:
    >>> from t2t_relpos.t2t.subwords import ESCAPE_CHARACTERS, SubwordVocabulary
    >>> subtokens = ["<pad>_", "<EOS>_", "the_", "cat_", "s_", ", "]
    >>> subtokens += sorted(ESCAPE_CHARACTERS.union(*subtokens))
    >>> vocabulary = SubwordVocabulary(tuple(subtokens))
    >>> [vocabulary.subtokens[i] for i in vocabulary.encode("the cats")]
    ['the_', 'c', 'a', 't', 's_']
    >>> [vocabulary.subtokens[i] for i in vocabulary.encode("thé")]
    ['t', 'h', '\\', '2', '3', '3', ';', '_']
    >>> vocabulary.decode(vocabulary.encode("thé cats, the cat_"))
    'thé cats, the cat_'
    """

    subtokens: tuple[str, ...]

    def __post_init__(self):
        start = self.subtokens[:2]
        if len(start) < 2 or any(
            subtoken not in names for subtoken, names in zip(start, _RESERVED)
        ):
            raise ValueError(
                "Expected a vocabulary of tensor2tensor, whose first two subtokens are '<pad>_' "
                "and '<EOS>_'. Received: "
                f"{_listed(start) or 'none'}. Pass the file named vocab.… that the model was "
                "trained with."
            )
        missing = sorted(self.alphabet.difference(self.ids))
        if missing:
            raise ValueError(
                r"Expected every character of the vocabulary, and those that escape others "
                r"(`\_u;` and the digits), to be a "
                f"subtoken by itself. Received: {len(self.subtokens)} subtokens without "
                f"{_listed(missing)}. "
                "The file is cut short or was edited: restore it."
            )

    @classmethod
    def from_bytes(cls, content: bytes) -> "SubwordVocabulary":
        """Returns the vocabulary in the content of a file: UTF-8, one subtoken per line.

        Quotes around a subtoken are optional.

        Raises:
            ValueError: if the content is not UTF-8 or is empty, and for the reasons listed under
                `SubwordVocabulary`.
        """
        try:
            # TensorFlow's file reader, and so tensor2tensor, drops every carriage return.
            text = content.decode("utf-8").replace("\r", "")
        except UnicodeDecodeError as error:
            raise ValueError(
                "Expected a vocabulary of tensor2tensor, a text file in UTF-8. Received: "
                f"{len(content)} bytes that are not "
                "UTF-8. Pass the file named vocab.… that the model was trained with."
            ) from error
        lines = text.split("\n")
        if not lines[-1]:
            lines.pop()
        return cls(tuple(_unquoted(line.rstrip()) for line in lines))

    def __len__(self):
        return len(self.subtokens)

    @functools.cached_property
    def ids(self) -> dict[str, int]:
        """The ids of all non-empty subtokens, by subtoken."""
        return {subtoken: i for i, subtoken in enumerate(self.subtokens) if subtoken}

    @functools.cached_property
    def alphabet(self) -> frozenset[str]:
        """The known characters. All of them except the backslash and `_` need no escape."""
        return ESCAPE_CHARACTERS.union(*self.subtokens)

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a string, without EOS."""
        return [i for token in _split(text) for i in self._token_ids(token)]

    def decode(self, ids) -> str:
        """Returns the string of ids.

        Args:
            ids: integers. Padding and EOS are decoded as "<pad>" and "<EOS>", as in
                tensor2tensor. Ids outside the vocabulary are ignored.
        """
        text = "".join(self.subtokens[i] for i in ids if 0 <= i < len(self.subtokens))
        tokens = [_unescape(token) for token in text.split("_") if token]
        words = [is_alphanumeric(token[0]) for token in tokens]
        gaps = [" " if left and right else "" for left, right in zip([False, *words], words)]
        return "".join(itertools.chain.from_iterable(zip(gaps, tokens)))

    def _token_ids(self, token):
        escaped = "".join(map(self._escape, token)) + "_"
        start = 0
        while start < len(escaped):
            end = min(len(escaped), start + self._longest)
            while escaped[start:end] not in self.ids:
                end -= 1
            yield self.ids[escaped[start:end]]
            start = end

    def _escape(self, character):
        if character == "\\":
            return "\\\\"
        if character == "_":
            return "\\u"
        # In the file each line is one subtoken, so no subtoken can contain a line break.
        return (
            character
            if character in self.alphabet and character != "\n"
            else f"\\{ord(character)};"
        )

    @functools.cached_property
    def _longest(self):
        return max(map(len, self.subtokens))


def is_alphanumeric(character: str) -> bool:
    """Returns whether a character is a letter or number in Python's version of Unicode."""
    return unicodedata.category(character)[0] in "LN"


@functools.cache
def alphanumeric_characters() -> str:
    """Returns all letters and numbers in the order of their code points."""
    return "".join(filter(is_alphanumeric, map(chr, range(LARGEST_CODE_POINT + 1))))


def _split(text):
    """Returns the tokens of a string, alternating between alphanumeric and other characters."""
    tokens = ["".join(group) for _, group in itertools.groupby(text, is_alphanumeric)]
    edges = (0, len(tokens) - 1)
    return [token for i, token in enumerate(tokens) if token != " " or i in edges]


def _unescape(token):
    return re.sub(ESCAPED, lambda match: _unescaped(match[0]), token)


def _unescaped(escape):
    if escape == "\\u":
        return "_"
    if escape == "\\\\":
        return "\\"
    number = escape[1:-1].lstrip("0") or "0"
    # Numbers of more than seven digits exceed the Unicode range.
    return chr(int(number)) if len(number) <= 7 and int(number) <= LARGEST_CODE_POINT else UNDEFINED


def _unquoted(line):
    # A line that is one quote character both starts and ends with it. tensor2tensor writes two such
    # lines for a subtoken that is a line break.
    for quote in "'\"":
        if line.startswith(quote) and line.endswith(quote):
            return line[1:-1]
    return line


def _listed(subtokens):
    shown = ", ".join(map(repr, subtokens[:_SHOWN]))
    more = len(subtokens) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
