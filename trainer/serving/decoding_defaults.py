"""What an exported translator does when a request does not say otherwise, and the most that a
request may ask for.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class TranslationSettings:
    """How a `TranslationModule` decodes when a request does not say otherwise, and its limits.

    Args:
        beam_size: hypotheses kept per sentence.
        alpha: exponent of the length penalty `((5 + length) / 6) ** alpha`.
        max_input_length: ids of a source sentence, EOS included; a longer one is cut and reported.
            The default is tensor2tensor's `max_length`, the longest sentence that its base settings
            train on.
        extra_length: ids that a translation may have in addition to the length of its source. 50 as
            in tensor2tensor.
        early_stopping: whether a sentence's search stops as soon as `beam_size` translations are
            finished: fewer steps, and sometimes a less likely translation.
        max_beam_size: the largest beam that a request may ask for, which protects a server's
            memory.

    Raises:
        ValueError: for a value that no search can honour.

    Example:
        >>> TranslationSettings(max_input_length=100).longest_translation
        150
    """

    beam_size: int = 4
    alpha: float = 0.6
    max_input_length: int = 256
    extra_length: int = 50
    early_stopping: bool = False
    max_beam_size: int = 32

    def __post_init__(self):
        least_values = {
            "beam_size": 1,
            "max_input_length": 2,
            "extra_length": 0,
            "max_beam_size": 1,
        }
        for name, least in least_values.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(
                    f"Expected {name} to be an integer of at least {least}. Received: {value!r}."
                )
        if not isinstance(self.early_stopping, bool):
            raise ValueError(
                f"Expected early_stopping to be True or False. Received: {self.early_stopping!r}."
            )
        if not 0.0 <= self.alpha < float("inf"):
            raise ValueError(
                f"Expected alpha to be a finite number of at least 0. Received: {self.alpha!r}."
            )
        if self.beam_size > self.max_beam_size:
            raise ValueError(
                f"Expected beam_size to be at most max_beam_size, {self.max_beam_size}. Received: "
                f"{self.beam_size}. "
                f"Give --max_beam_size={self.beam_size}, or a smaller beam."
            )

    @property
    def longest_translation(self) -> int:
        """Most ids that any translation has, EOS included."""
        return self.max_input_length + self.extra_length
