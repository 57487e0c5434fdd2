"""The lines written for a sentence: its best translation, a list of the best, the links between its
tokens.
"""

from collections.abc import Sequence

from trainer.serving.translator import Translation, one_line

# Of each: the number of the input's line, from 1, and its translations, the best first; returns
# whole lines.


def best(number: int, translations: Sequence[Translation]) -> bytes:
    """The best translation.

    Example:
        >>> best(1, [Translation(b"ein Hund", -0.25, False)])
        b'ein Hund\\n'
    """
    return one_line(translations[0].text) + b"\n"


def best_and_score(number: int, translations: Sequence[Translation]) -> bytes:
    """The best translation, a tab, and its score: log-probability over the length penalty.

    Example:
        >>> best_and_score(1, [Translation(b"ein Hund", -0.25, False)])
        b'ein Hund\\t-0.2500\\n'
    """
    # A tab inside of the text would make a third column.
    text = one_line(translations[0].text).replace(b"\t", b" ")
    return text + b"\t%.4f\n" % translations[0].score


def n_best(number: int, translations: Sequence[Translation]) -> bytes:
    """All translations as Moses lists them: number of the sentence from 0, text, scores by name,
    and the score to rank by.

    Example:
        >>> found = [Translation(b"ein Hund", -0.25, False), Translation(b"Hund", -1.5, False)]
        >>> print(n_best(1, found).decode(), end="")
        0 ||| ein Hund ||| Score= -0.2500 ||| -0.2500
        0 ||| Hund ||| Score= -1.5000 ||| -1.5000
    """
    row = b"%d ||| %s ||| Score= %.4f ||| %.4f\n"
    return b"".join(
        row % (number - 1, one_line(each.text), each.score, each.score) for each in translations
    )


def links(number: int, translations: Sequence[Translation]) -> bytes:
    """A line per translation of links `i-j` in Pharaoh's format: token j of the translation
    attends most to i of the source.

    Example:
        >>> from trainer.serving.translator import Alignment
        >>> aligned = Alignment([b"a", b"dog"], [b"ein", b"Hu", b"nd"], [0, 1, 1])
        >>> links(1, [Translation(b"ein Hund", -0.25, False, aligned)])
        b'0-0 1-1 1-2\\n'
    """
    return b"".join(
        b" ".join(b"%d-%d" % (i, j) for j, i in enumerate(each.alignment.sources)) + b"\n"
        for each in translations
    )


def tokens(number: int, translations: Sequence[Translation]) -> bytes:
    """A line per translation of what links count: the model's subwords, source and translation as
    fast_align reads them.

    Example:
        >>> from trainer.serving.translator import Alignment
        >>> aligned = Alignment([b"a", b"dog"], [b"ein", b"Hu", b"nd"], [0, 1, 1])
        >>> tokens(1, [Translation(b"ein Hund", -0.25, False, aligned)])
        b'a dog ||| ein Hu nd\\n'
    """
    sides = ((each.alignment.source_tokens, each.alignment.target_tokens) for each in translations)
    return b"".join(
        b"%s ||| %s\n" % tuple(b" ".join(map(_one_word, side)) for side in pair) for pair in sides
    )


def _one_word(token):
    # SentencePiece's sign for a space, so that the n-th word of the line is token n whatever the
    # vocabulary holds.
    return (
        b"\xe2\x96\x81".join(token.replace(b"|||", b"| | |").split(b" ")).translate(None, b"\r\n")
        or b"\xe2\x96\x81"
    )
