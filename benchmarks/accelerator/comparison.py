"""Compares implementations that take turns in one process."""

import dataclasses
import functools
import time
from collections.abc import Callable

import numpy as np

from benchmarks.accelerator import devices
from benchmarks.accelerator.steps import Case, attention_step, training_step
from benchmarks.common.bootstrap import format_interval, median_and_interval
from benchmarks.common.worker_processes import in_turns

HEADER = ["part", "direction", "dtype", "positions", "batch", "implementation", "ms"]
HEADER += ["over plain", "over flash", "MB", "tokens/s"]


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
        """Returns a comparison of implementations of `benchmarks.accelerator.steps`."""
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
