"""Compares implementations that take turns in one process, on the device of the backend."""

import dataclasses
import functools
import time
from collections.abc import Callable

import keras
import numpy as np

from benchmarks import devices
from benchmarks.attention.steps import Case, attention_step
from benchmarks.tables import format_interval, median_and_interval
from benchmarks.workers import in_turns
from t2t_relpos import Transformer
from t2t_relpos.models import TransformerConfig

# `flash` is the backend's own fused or blockwise attention, which TensorFlow does not have.
IMPLEMENTATIONS = ("plain", "flash", "relative", "relative_linear")
HEADER = ["part", "direction", "dtype", "positions", "batch", "implementation", "ms"]
HEADER += ["over plain", "over flash", "MB", "tokens/s"]


def implementations() -> list[str]:
    """Returns the implementations of this backend."""
    has_flash = keras.backend.backend() != "tensorflow"
    return [name for name in IMPLEMENTATIONS if has_flash or name != "flash"]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Implementations of one computation.

    Args:
        settings: cells of their rows: part, direction, dtype, length and batch_size.
        makers: functions that return a step, by implementation.
        tokens: tokens of a step, if its rows report a rate.
    """

    settings: dict
    makers: dict[str, Callable]
    tokens: int | None = None

    @classmethod
    def of_attention(cls, case: Case, names: list[str], *, xla: bool):
        """Returns a comparison of implementations of `attention_step`."""
        makers = {name: functools.partial(attention_step, name, case, xla=xla) for name in names}
        return cls(dataclasses.asdict(case), makers)

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
        settings = {"part": "training", "dtype": dtype, "length": length, "batch_size": pairs}
        return cls(settings, makers, tokens=2 * pairs * length)

    def rows(self, seconds: dict[str, list[float]]) -> list[dict]:
        """Returns a row for every implementation, with ratios to plain and flash attention.

        Args:
            seconds: results of `take_turns`.
        """
        rows = []
        for name, times in seconds.items():
            milliseconds = 1000 * np.median(times)
            row = self.settings | {"implementation": name, "milliseconds": milliseconds}
            if self.tokens is not None:
                row["tokens_per_second"] = 1000 * self.tokens / milliseconds
            for of in ("plain", "flash"):
                if of in seconds:
                    values = median_and_interval(np.divide(times, seconds[of]))
                    row |= dict(zip((f"over_{of}", f"low_{of}", f"high_{of}"), values))
            rows.append(row)
        return rows


def take_turns(steps: dict, runs: int, seconds: float = float("inf")) -> dict[str, list[float]]:
    """Returns the seconds of every run of every step. Call each step before, so that it compiles.

    Args:
        steps: functions without arguments by name.
        runs: number of turns.
        seconds: no turn of all steps begins after this time, except for the first three.
    """
    times, end = {name: [] for name in steps}, time.perf_counter() + seconds
    devices.wait()
    for run, name in in_turns(steps, runs):
        is_first = len(set(map(len, times.values()))) == 1
        if run >= 3 and is_first and time.perf_counter() > end:
            break
        start = time.perf_counter()
        steps[name]()
        devices.wait()
        times[name].append(time.perf_counter() - start)
    return times


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
    return lambda: model.train_on_batch(batch, batch["targets"])


def peak_memory(implementation: str, case: Case, *, xla: bool) -> float:
    """Returns the peak memory of two steps in MB, minus the memory in use before them.

    Call it once per process: memory that a process has freed may be reused without being counted.
    """
    # The first step of a process allocates memory that does not depend on the case.
    attention_step(implementation, dataclasses.replace(case, length=8), xla=xla)()
    return devices.peak_increase(attention_step(implementation, case, xla=xla))


def cells_of(row: dict) -> list[str]:
    """Returns the cells of a row for the columns of HEADER."""
    cells = [row["part"], row.get("direction", ""), row["dtype"], row["length"]]
    cells += [row["batch_size"], row["implementation"], f"{row['milliseconds']:.2f}"]
    for of in ("plain", "flash"):
        values = [row.get(f"{column}_{of}") for column in ("over", "low", "high")]
        cells.append("" if values[0] is None else format_interval(*values))
    for name in ("megabytes", "tokens_per_second"):
        cells.append("" if row.get(name) is None else f"{row[name]:,.0f}")
    return list(map(str, cells))
