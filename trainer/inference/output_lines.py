"""Functions that format output lines.

Every function takes the number of the input line, from 1, and its translations, best first. It
returns complete lines, including line ends.
"""

from collections.abc import Sequence

from trainer.serving.translator import Translation, one_line

# The separator of fields. Inside a text, it is written with spaces.
_SEPARATOR = b"|||"


def best(number: int, translations: Sequence[Translation]) -> bytes:
    """Returns the best translation."""
    return one_line(translations[0].text) + b"\n"


def best_and_score(number: int, translations: Sequence[Translation]) -> bytes:
    """Returns the best translation, a tab, and its score."""
    # A tab inside the text would make a third column.
    text = one_line(translations[0].text).replace(b"\t", b" ")
    return text + b"\t%.4f\n" % translations[0].score


def n_best(number: int, translations: Sequence[Translation]) -> bytes:
    """Returns all translations in the format of Moses, with sentence numbers from 0."""
    row = b"%d ||| %s ||| Score= %.4f ||| %.4f\n"
    texts = [one_line(each.text).replace(_SEPARATOR, b"| | |") for each in translations]
    return b"".join(
        row % (number - 1, text, each.score, each.score) for text, each in zip(texts, translations)
    )


def links(number: int, translations: Sequence[Translation]) -> bytes:
    """Returns a line of links `i-j` in Pharaoh's format per translation.

    A link means that target token j attends most to source token i.
    """
    return b"".join(
        b" ".join(b"%d-%d" % (i, j) for j, i in enumerate(each.alignment.sources)) + b"\n"
        for each in translations
    )


def tokens(number: int, translations: Sequence[Translation]) -> bytes:
    """Returns the subwords that `links` refers to, in the format that fast_align reads."""
    sides = ((each.alignment.source_tokens, each.alignment.target_tokens) for each in translations)
    return b"".join(
        b"%s ||| %s\n" % tuple(b" ".join(map(_one_word, side)) for side in pair) for pair in sides
    )


# SentencePiece's symbol for a space.
_SPACE = "▁".encode()


def _one_word(token):
    """Replaces spaces and separators in a token, so that token n is word n of the line."""
    token = token.replace(_SEPARATOR, b"| | |").replace(b" ", _SPACE)
    return token.translate(None, b"\r\n") or _SPACE
