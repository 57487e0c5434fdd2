"""Reports of the text that a program reads: unknown tokens and lines changed by normalization."""

import collections
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

# Larger shares of unknown tokens are reported with a warning.
UNKNOWN_LIMIT = 0.001
_UNKNOWN = b"<unk>"
_NEW_VOCABULARY = "Train the vocabulary with --byte_fallback, or on text with these characters."
_FIXED_VOCABULARY = (
    "The vocabulary of a model does not change. Replace these characters in the text, or train a "
    "new model with --preset and --byte_fallback."
)
_LINES_PER_CALL = 1024


@dataclass(frozen=True)
class TextCounts:
    """Counts of sentences and of their tokens without EOS. Add them with `+`.

    `byte_pieces` stand for a single byte, see `--byte_fallback`. `normalized` sentences are changed
    by normalization, spaces aside.
    """

    lines: int = 0
    tokens: int = 0
    unknown: int = 0
    byte_pieces: int = 0
    normalized: int = 0

    def __add__(self, other: "TextCounts") -> "TextCounts":
        pairs = zip(asdict(self).values(), asdict(other).values())
        return TextCounts(*map(sum, pairs))

    @property
    def unknown_share(self) -> float:
        return self.unknown / max(self.tokens, 1)

    def __str__(self):
        parts = [
            f"{self.tokens:,} tokens",
            f"{self.unknown:,} unknown ({self.unknown_share:.2%})",
        ]
        if self.byte_pieces:
            share = self.byte_pieces / self.tokens
            parts.append(f"{self.byte_pieces:,} byte pieces ({share:.2%})")
        parts.append(f"normalization changes {self.normalized:,} of {self.lines:,} lines")
        return ", ".join(parts)

    def warning(self, description: str, *, is_new: bool = False) -> str | None:
        """Returns a warning if many tokens of `description`, such as "the source", are unknown.

        `is_new`: whether the vocabulary was trained by this run, so that it can be replaced.
        """
        if self.unknown_share <= UNKNOWN_LIMIT:
            return None
        return (
            f"warning: {self.unknown_share:.2%} of the tokens of {description} are unknown, "
            "because the vocabulary lacks their characters. A model can't learn or translate "
            f"them. {_NEW_VOCABULARY if is_new else _FIXED_VOCABULARY}"
        )


def describe_sides(sides: dict[str, TextCounts], *, is_new: bool = False) -> list[str]:
    """Returns a line of counts for each side by name, and warnings as `TextCounts.warning`."""
    lines = [f"  {name}: {counts}" for name, counts in sides.items()]
    warnings = (counts.warning(f"the {x}", is_new=is_new) for x, counts in sides.items())
    return lines + [f"  {warning}" for warning in warnings if warning is not None]


class CountedTranslations:
    """A function that translates as `Translator.n_best`, and counts what it reads.

    `module` is for `count_in_graph`. Without it, tokens are not counted.
    """

    def __init__(self, translate: Callable[[Sequence[bytes]], Sequence], module=None):
        self._translate = translate
        self._module = module
        self._lines = self._blank = self._cut = 0
        self._counts = TextCounts()

    def __call__(self, sentences: Sequence[bytes]) -> Sequence:
        results = self._translate(sentences)
        self._lines += len(sentences)
        self._blank += sum(not sentence.strip() for sentence in sentences)
        self._cut += sum(translations[0].truncated for translations in results)
        if self._module is not None:
            self._counts += count_in_graph(self._module, sentences)
        return results

    def describe(self) -> list[str]:
        lines = [f"Read {self._lines:,} lines: {self._blank:,} blank, {self._cut:,} cut."]
        return lines + (describe_sides({"source": self._counts}) if self._counts.tokens else [])


def count_in_graph(module, texts: Sequence[bytes], side: str = "source") -> TextCounts:
    """Returns the counts of sentences for an exported model.

    `module` is a `TranslationModule`, or a SavedModel of one. An export has no function that
    normalizes. A sentence without unknown tokens counts as normalized if its tokens stand for other
    text. `side` is that of the vocabulary, "source" or "target".
    """
    # `trainer.translate --help` must not wait for TensorFlow.
    import tensorflow as tf

    module = getattr(module, side, module)  # Version 0.2 exported one vocabulary.
    total = TextCounts()
    for start in range(0, len(texts), _LINES_PER_CALL):
        block = list(texts[start : start + _LINES_PER_CALL])
        ids = module.ids(tf.constant(block))
        names = module.tokenize(tf.constant(block))["tokens"].numpy()
        round_trips = module.detokenize(ids["ids"])["text"].numpy()
        has_unknown = (names == _UNKNOWN).any(axis=1)
        counts = collections.Counter(names.ravel().tolist())
        total += TextCounts(
            lines=len(block),
            tokens=int(ids["lengths"].numpy().sum()) - len(block),  # Without EOS.
            unknown=counts[_UNKNOWN],
            byte_pieces=sum(count for name, count in counts.items() if _is_byte(name)),
            normalized=sum(
                not unknown and squeeze(text) != squeeze(other)
                for text, other, unknown in zip(block, round_trips, has_unknown)
            ),
        )
    return total


def squeeze(text: bytes) -> bytes:
    """Returns a text without spaces at its ends, and with single ones between words.

    Only U+0020 separates words. `tf.strings.strip` removes the same characters from the ends.
    """
    return b" ".join(filter(None, text.strip().split(b" ")))


def _is_byte(name):
    return name.startswith(b"<0x") and len(name) == len("<0x00>")
