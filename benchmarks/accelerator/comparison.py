"""Implementations of one computation that `check` compares, and the rows of its table."""

import dataclasses
import functools
from collections.abc import Callable

import keras
import numpy as np

from benchmarks.attention.compiled_steps import wait_for_torch
from benchmarks.attention.steps import Case, attention_step
from benchmarks.tables import format_median
from t2t_relpos import Transformer
from t2t_relpos.models import TransformerConfig

HEADER = ["part", "direction", "dtype", "positions", "batch", "implementation", "ms"]
HEADER += ["over plain", "over flash", "tokens/s"]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Implementations of one computation.

    Args:
        settings: the first five cells of their rows: part, direction, dtype, length, batch size.
        makers: functions that return a step, by implementation.
        tokens: tokens of a step, if its rows report a rate.
    """

    settings: tuple
    makers: dict[str, Callable]
    tokens: int | None = None

    @classmethod
    def of_attention(cls, case: Case):
        """Returns a comparison of all implementations of `attention_step`, compiled with XLA."""
        # If the time ends within a comparison, the ratio to flash attention has been measured.
        names = ["flash", "relative", "relative_linear", "plain"]
        if keras.backend.backend() == "tensorflow":
            names.remove("flash")
        makers = {name: functools.partial(attention_step, name, case, xla=True) for name in names}
        return cls(dataclasses.astuple(case)[:5], makers)

    @classmethod
    def of_training(cls, dtype: str, preset: str, sizes: tuple[int, int, int]):
        """Returns a comparison of training steps with relative and sinusoidal positions.

        Args:
            dtype, preset, sizes: as in `training_step`.
        """
        makers = {
            name: functools.partial(training_step, position, dtype, preset, sizes)
            for name, position in (("plain", "sinusoidal"), ("relative", "relative"))
        }
        _, pairs, length = sizes
        return cls(("training", "", dtype, length, pairs), makers, tokens=2 * pairs * length)

    def cells(self, name: str, times: dict[str, list[float]]) -> list[str]:
        """Returns the cells of a row, with ratios to plain and flash attention.

        Args:
            name: the implementation.
            times: seconds of every run by implementation.
        """
        median = np.median(times[name])
        cells = [*map(str, self.settings), name, f"{1000 * median:.2f}"]
        for of in ("plain", "flash"):
            cells.append(format_median(np.divide(times[name], times[of])) if of in times else "")
        return [*cells, "" if self.tokens is None else f"{self.tokens / median:,.0f}"]

    def describe(self, *names: str) -> str:
        """Returns the part, the direction, the length and implementations as text."""
        part, direction, _, length, _ = self.settings
        return " ".join(filter(None, (part, direction, str(length), ", ".join(names))))


def training_step(position: str, dtype: str, preset: str, sizes: tuple[int, int, int]):
    """Returns a function that runs a training step of a Transformer, compiled with Keras defaults.

    Args:
        position: "relative", or "sinusoidal" for plain attention.
        dtype: dtype of the computation.
        preset: name of the architecture.
        sizes: vocabulary size, number of sentence pairs, and length of both sides.
    """
    vocab_size, batch_size, length = sizes
    policy = dtype if dtype == "float32" else f"mixed_{dtype}"
    config = TransformerConfig.from_preset(preset, vocab_size=vocab_size, position=position)
    model = Transformer(config, dtype=policy)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss)
    ids = np.random.default_rng(1).integers(2, vocab_size, (2, batch_size, length)).astype("int32")
    batch = {"inputs": ids[0], "targets": ids[1]}

    def step():
        model.train_on_batch(batch, batch["targets"])
        if keras.backend.backend() == "torch":
            wait_for_torch()

    return step
