"""Default options of an exported translator, and the limits of its requests."""

import dataclasses

_LEAST = {"beam_size": 1, "max_input_length": 2, "extra_length": 0, "max_beam_size": 1}


@dataclasses.dataclass(frozen=True)
class TranslationSettings:
    """Default options and limits of a `TranslationModule`.

    Args:
        beam_size: hypotheses kept per sentence.
        alpha: exponent of the length penalty `((5 + length) / 6) ** alpha`.
        max_input_length: ids of a source sentence, with EOS; a longer sentence is truncated. The
            default is tensor2tensor's `max_length`.
        extra_length: ids that a translation may have in addition to the length of its source. The
            default is tensor2tensor's.
        early_stopping: whether the search of a sentence stops as soon as `beam_size` translations
            are finished. This takes fewer steps and sometimes finds a less likely translation.
        max_beam_size: largest beam size of a request, which limits the memory of a server.
        jit_compile: whether XLA compiles the search with these settings. Batches and sentences are
            padded to the sizes in `compiled_search`; larger ones, and requests with other
            settings, run without XLA.

    Raises:
        ValueError: for values out of range.
    """

    beam_size: int = 4
    alpha: float = 0.6
    max_input_length: int = 256
    extra_length: int = 50
    early_stopping: bool = False
    max_beam_size: int = 32
    jit_compile: bool = False

    def __post_init__(self):
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(
                    f"Expected {name} to be an integer of at least {least}. Received: {value!r}."
                )
        if not 0.0 <= self.alpha < float("inf"):
            raise ValueError(
                f"Expected alpha to be a finite number of at least 0. Received: {self.alpha!r}."
            )
        if self.beam_size > self.max_beam_size:
            raise ValueError(
                f"Expected beam_size to be at most max_beam_size, {self.max_beam_size}. Received: "
                f"{self.beam_size}. Give --max_beam_size={self.beam_size}, or a smaller beam."
            )

    @property
    def longest_translation(self) -> int:
        """Largest number of ids of any translation, with EOS."""
        return self.max_input_length + self.extra_length
