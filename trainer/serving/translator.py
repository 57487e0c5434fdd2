"""Calls a translation graph with sentences, batches and streams of lines."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

# The score of an empty place in a list of translations. Finite, since JSON has no infinity.
ABSENT = -1e7


class Alignment(NamedTuple):
    """Subwords of a sentence and its translation without EOS, and for each target subword the index
    of the source subword that it attends to most.
    """

    source_tokens: Sequence[bytes]
    target_tokens: Sequence[bytes]
    sources: Sequence[int]


class Translation(NamedTuple):
    """The translation of one sentence.

    Attributes:
        text: UTF-8.
        score: log-probability over the length penalty.
        truncated: whether only the beginning of the input was translated.
        alignment: set if the `Translator` has a score function.
    """

    text: bytes
    score: float
    truncated: bool
    alignment: Alignment | None = None


class Translator:
    """A translation graph as a function of lists of sentences.

    Args:
        call: takes the keyword `text`, a string tensor `[B]`, and returns the dict of
            `TranslationModule.serve` or `TranslationModule.translate`.
        owner: the module of `call`. TensorFlow functions refer to it only weakly.
        score: `TranslationModule.score`; if given, translations have alignments.

    Attributes:
        call, owner: as given.
    """

    def __init__(
        self, call: Callable[..., dict], owner=None, score: Callable[..., dict] | None = None
    ):
        self.call = call
        self.owner = owner
        self._score = score

    def __call__(self, sentences: Sequence[str | bytes]) -> list[Translation]:
        """Returns the best translation of each sentence of a batch, in order."""
        return [translations[0] for translations in self.n_best(sentences)]

    def n_best(self, sentences: Sequence[str | bytes]) -> list[list[Translation]]:
        """Returns the translations of each sentence of a batch, best first, without empty places.

        Raises:
            ValueError: if the graph rejects the options.
        """
        # `trainer.translate --help` must not wait for TensorFlow.
        import tensorflow as tf

        try:
            answer = self.call(text=tf.constant(list(sentences), tf.string))
            texts, scores = (answer[name].numpy() for name in ("translations", "scores"))
            if texts.ndim == 1:
                texts, scores = texts[:, None], scores[:, None]
            alignments = self._align(sentences, texts)
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(plain_message(error)) from error
        truncated = answer["truncated"].numpy().tolist()
        columns = texts.tolist(), scores.tolist(), truncated, alignments
        return [
            [
                Translation(text, score, cut, alignment)
                for rank, (text, score, alignment) in enumerate(zip(*row, links))
                if rank == 0 or score > ABSENT
            ]
            for *row, cut, links in zip(*columns)
        ]

    def _align(self, sentences, texts):
        """Returns the alignments of translations `[B, n]`, or None for each."""
        if self._score is None:
            return np.full(texts.shape, None)
        import tensorflow as tf

        sources = np.repeat(np.array(sentences, object), texts.shape[1])
        scored = self._score(text=tf.constant(sources), translation=tf.constant(texts.ravel()))
        names = ("source_tokens", "source_lengths", "tokens", "lengths", "alignments")
        found = [align(*row) for row in zip(*(scored[name].numpy() for name in names))]
        return [found[i : i + texts.shape[1]] for i in range(0, len(found), texts.shape[1])]


def align(source_tokens, source_length: int, tokens, length: int, weights) -> Alignment:
    """Returns the alignment of one translation from its attention weights.

    EOS of the source is excluded: attention to it is high for tokens without a counterpart.

    Args:
        source_tokens, tokens: subwords `[S]` and `[T]`.
        source_length, length: their numbers, with EOS.
        weights: attention `[T, S]`.
    """
    rows, columns = max(length - 1, 0), max(source_length - 1, 0)
    sources = weights[:rows, :columns].argmax(axis=1).tolist() if columns else []
    return Alignment(list(source_tokens[:columns]), list(tokens[:rows]), sources)


def plain_message(error) -> str:
    """Returns the message of a `tf.errors.OpError` in one line, without the name of its node."""
    failed = re.search(r"assertion failed: (.*)", error.message)
    if failed is None:
        return error.message.strip().splitlines()[-1]
    return " ".join(re.findall(r"\[([^\[\]]*)\]", failed.group(1)))


def translate_lines(
    translate: Callable[[Sequence[bytes]], Sequence],
    lines: Iterable[bytes],
    batch_size: int,
    window: int,
) -> Iterator:
    """Translates a stream of lines, with at most one window of it in memory.

    Args:
        translate: translates one batch, as a `Translator` or its `n_best`.
        lines: sentences without their line ends.
        batch_size: sentences per call of `translate`.
        window: lines read before the first result. They are sorted by length to reduce padding.

    Yields:
        The result of each line, in order.
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
    """Returns a text as one line, so that line N of a file is the translation of line N."""
    return b" ".join(text.splitlines())
