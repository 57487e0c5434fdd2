"""Translation of sentences, batches and streams of lines with a translation graph."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..errors import plain_message

# Score of a missing translation, a copy of that of t2t_relpos, which `translate` does not import.
NO_OUTPUT_SCORE = -1e7


class Alignment(NamedTuple):
    """Subwords of a sentence and its translation, without EOS, and their alignment.

    `sources` has the index of the source subword that each target subword attends to most.
    """

    source_tokens: Sequence[bytes]
    target_tokens: Sequence[bytes]
    sources: Sequence[int]


class Translation(NamedTuple):
    """The translation of one sentence.

    Attributes:
        text: the translation in UTF-8.
        score: log-probability divided by the length penalty.
        truncated: whether the input was truncated.
        alignment: None if the `Translator` has no score function.
        complete: whether the translation ends below the maximum length. True for exports of
            earlier versions, which do not say it.
    """

    text: bytes
    score: float
    truncated: bool
    alignment: Alignment | None = None
    complete: bool = True


class Translator:
    """A function that translates lists of sentences with a translation graph.

    Args:
        call: function of the keyword argument `text`, a string tensor `[B]`. It returns the dict of
            `TranslationModule.serve` or `TranslationModule.translate`.
        owner: module of `call`, to keep it alive. TensorFlow functions have weak references to it.
        score: `TranslationModule.score`. If it is given, translations have alignments.
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
        """Returns the translations of each sentence of a batch, best first, without missing ones.

        Raises:
            ValueError: if the graph rejects the options, or the batch does not fit into memory.
        """
        # `trainer.translate --help` must not wait for TensorFlow.
        import tensorflow as tf

        try:
            answer = self.call(text=tf.constant(list(sentences), tf.string))
            texts, scores = (answer[name].numpy() for name in ("translations", "scores"))
            complete = answer.get("complete", tf.ones_like(scores, tf.bool)).numpy()
            if texts.ndim == 1:
                texts, scores, complete = (x[:, None] for x in (texts, scores, complete))
            alignments = self._align(sentences, texts)
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(plain_message(error)) from error
        except tf.errors.ResourceExhaustedError as error:
            raise ValueError(
                f"Expected a batch that fits into memory. Received: {len(sentences)} sentences "
                f"({plain_message(error)}). Lower --batch_size or --beam_size."
            ) from error
        truncated = answer["truncated"].numpy().tolist()
        columns = texts.tolist(), scores.tolist(), alignments, complete.tolist()
        return [
            [
                Translation(text, score, cut, alignment, ends)
                for rank, (text, score, alignment, ends) in enumerate(zip(*row))
                if rank == 0 or score > NO_OUTPUT_SCORE
            ]
            for cut, *row in zip(truncated, *columns)
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
    """Returns the alignment of one translation from its attention weights `[T, S]`.

    The lengths include EOS, which is excluded: tokens without a counterpart attend to it most.
    """
    rows, columns = max(length - 1, 0), max(source_length - 1, 0)
    sources = weights[:rows, :columns].argmax(axis=1).tolist() if columns else []
    return Alignment(list(source_tokens[:columns]), list(tokens[:rows]), sources)


def translate_lines(
    translate: Callable[[Sequence[bytes]], Sequence],
    lines: Iterable[bytes],
    batch_size: int,
    window: int,
) -> Iterator:
    """Yields the results of a stream of lines, in order.

    Args:
        translate: function that translates a batch, such as a `Translator` or its `n_best`.
        lines: sentences without line ends.
        batch_size: sentences per call of `translate`.
        window: number of lines in memory. They are sorted by length to reduce padding.
    """
    lines = iter(lines)
    while block := list(itertools.islice(lines, window)):
        by_length = sorted(range(len(block)), key=lambda i: len(block[i]))
        answers = [None] * len(block)
        for start in range(0, len(block), batch_size):
            rows = by_length[start : start + batch_size]
            for row, answer in zip(rows, translate([block[i] for i in rows]), strict=True):
                answers[row] = answer
        yield from answers


def translate_texts(
    translate: Callable[[Sequence[bytes]], Sequence[Translation]],
    sources: Iterable[str],
    batch_size: int,
) -> tuple[list[str], int]:
    """Returns the translations of sentences as lines, and the number of truncated sentences."""
    lines = [source.encode() for source in sources]
    answers = list(translate_lines(translate, lines, batch_size, window=len(lines)))
    texts = [one_line(answer.text).decode(errors="replace") for answer in answers]
    return texts, sum(answer.truncated for answer in answers)


def one_line(text: bytes) -> bytes:
    """Replaces line ends with spaces, so that line n of a file is the translation of line n."""
    return b" ".join(text.splitlines())
