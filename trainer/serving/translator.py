"""Calling a translation graph with sentences, batches, and streams of lines."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf


class Alignment(NamedTuple):
    """Subwords of a sentence and its translation, without EOS, and for each of the latter's which
    of the former's it attends to.
    """

    source_tokens: Sequence[bytes]
    target_tokens: Sequence[bytes]
    sources: Sequence[int]


class Translation(NamedTuple):
    """The answer for one sentence: UTF-8 text, its score, and whether only the beginning of the
    input was translated.
    """

    text: bytes
    score: float
    truncated: bool
    alignment: Alignment | None = None


class Translator:
    """A translation graph, loaded from a SavedModel or built in this process, as a function of
    lists of sentences.

    Args:
        call: takes `text`, a string tensor `[B]`, as a keyword and returns the dict of
            `TranslationModule.serve`.
        owner: the module of `call`, kept alive as long as the translator: TensorFlow functions
            refer to it only weakly.

    Attributes:
        call, owner: as given.
    """

    def __init__(self, call: Callable[..., dict], owner=None):
        self.call = call
        self.owner = owner

    def __call__(self, sentences: Sequence[str | bytes]) -> list[Translation]:
        """Translates one batch, in order."""
        answer = self.call(text=tf.constant(list(sentences), tf.string))
        columns = (
            answer[name].numpy().tolist() for name in ("translations", "scores", "truncated")
        )
        return [Translation(*row) for row in zip(*columns)]


def translate_lines(
    translate: Callable[[Sequence[bytes]], Sequence[Translation]],
    lines: Iterable[bytes],
    batch_size: int,
    window: int,
) -> Iterator[Translation]:
    """Translates a stream of lines, holding no more than one window of it in memory.

    Args:
        translate: translates one batch, as a `Translator`.
        lines: sentences without their line ends.
        batch_size: sentences per call of `translate`.
        window: lines read before the first answer; they are sorted by length, so that a batch holds
            little padding.

    Yields:
        One translation per line, in the order of the lines.

    Example:
        >>> upper = lambda batch: [Translation(sentence.upper(), 0.0, False) for sentence in batch]
        >>> lines = [b"ein hund", b"", b"ja"]
        >>> [answer.text for answer in translate_lines(upper, lines, batch_size=2, window=3)]
        [b'EIN HUND', b'', b'JA']
    """
    lines = iter(lines)
    while block := list(itertools.islice(lines, window)):
        yield from _translate_window(translate, block, batch_size)


def _translate_window(translate, lines, batch_size):
    by_length = sorted(range(len(lines)), key=lambda i: len(lines[i]))
    answers = [None] * len(lines)
    for start in range(0, len(lines), batch_size):
        rows = by_length[start : start + batch_size]
        for row, answer in zip(rows, translate([lines[i] for i in rows]), strict=True):
            answers[row] = answer
    return answers


def one_line(text: bytes) -> bytes:
    """Text as one line of a file, so that line N stays the translation of line N.

    Example:
        >>> one_line(b"ein\\r\\nHund")
        b'ein Hund'
    """
    return b" ".join(text.splitlines())
