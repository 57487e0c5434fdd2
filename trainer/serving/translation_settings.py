"""Default options of an exported model, and limits of its requests."""

import dataclasses

from .. import setting_flags
from ..model_dir import ModelDirectory
from ..setting_flags import setting


@dataclasses.dataclass(frozen=True)
class TranslationSettings:
    """Default options and limits of a `TranslationModule`.

    The length penalty is `((5 + length) / 6) ** alpha`. Defaults of `max_input_length` and
    `extra_length` are those of tensor2tensor.
    """

    beam_size: int = setting("Hypotheses per sentence.", 4, at_least=1)
    alpha: float = setting("Exponent of the length penalty.", 0.6, at_least=0.0)
    max_input_length: int = setting(
        "Maximum number of ids of a sentence. Longer sentences are truncated.", 256, at_least=2
    )
    extra_length: int = setting(
        "Maximum number of ids by which a translation may exceed its source.", 50, at_least=0
    )
    early_stopping: bool = setting(
        "Stop a search at beam_size finished translations. This is faster but less exact.", False
    )
    max_beam_size: int = setting("Maximum beam size of a request.", 32, at_least=1)

    def __post_init__(self):
        setting_flags.check(self)
        if self.beam_size > self.max_beam_size:
            raise ValueError(
                f"Expected beam_size to be at most max_beam_size, {self.max_beam_size}. Received: "
                f"{self.beam_size}. Give --max_beam_size={self.beam_size}, or a smaller beam size."
            )

    @property
    def longest_translation(self) -> int:
        """Maximum number of ids of a translation, with EOS."""
        return self.max_input_length + self.extra_length


def longest_input(directory: ModelDirectory) -> int:
    """Returns the default of `max_input_length` for a model.

    No sentence is truncated that was short enough for training.
    """
    longest = max(directory.read_run().get("max_length") or 0, TranslationSettings.max_input_length)
    architecture = directory.read_config()["architecture"]
    is_limited = architecture.get("position", "").endswith("learned")
    return min(longest, architecture["max_length"]) if is_limited else longest
