"""Options of an exported language model."""

import dataclasses

from .. import setting_flags
from ..setting_flags import setting

# The settings that each sampler has.
SAMPLERS = {
    "beam": ("beam_size", "alpha", "early_stopping"),
    "greedy": (),
    "random": ("temperature", "top_k", "top_p"),
}


@dataclasses.dataclass(frozen=True)
class GenerationSettings:
    """Options of a `LanguageModule`."""

    sampler: str = setting(
        "How a language model continues prompts.", "greedy", choices=tuple(SAMPLERS)
    )
    beam_size: int = setting("Hypotheses per prompt.", 4, at_least=1)
    alpha: float = setting("Exponent of the length penalty.", 0.6, at_least=0.0)
    early_stopping: bool = setting("Stop a search at beam_size finished outputs.", False)
    temperature: float = setting(
        "Divides the logits of a language model, with --sampler=random.", 1.0, above=0.0
    )
    top_k: int | None = setting(
        "With --sampler=random: draw from the k most likely ids. Default: all.", at_least=1
    )
    top_p: float = setting(
        "With --sampler=random: draw from the fewest ids whose probabilities sum to p.",
        1.0,
        above=0.0,
    )
    max_length: int | None = setting(
        "Largest number of ids of an output of a language model, with its prompt and EOS. Default: "
        "50 more than the longest prompt of a request, up to the number of learned positions.",
        at_least=1,
    )

    def __post_init__(self):
        setting_flags.check(self)
        if self.top_p > 1:
            raise ValueError(f"Expected top_p to be at most 1. Received: {self.top_p}.")
