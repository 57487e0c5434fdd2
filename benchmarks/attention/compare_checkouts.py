"""Compares relative attention of this checkout with that of another one."""

import dataclasses
from collections.abc import Iterable

import numpy as np

from benchmarks.attention.steps import Case, Options
from benchmarks.common.bootstrap import format_interval, median_and_interval
from benchmarks.common.tables import print_cells, print_header
from benchmarks.common.worker_processes import ROOT, in_turns, start_workers

WORKER = "benchmarks.attention.checkout_worker"
HEADER = ("part", "direction", "passes", "K", "n", "baseline ms", "this ms")
HEADER += ("this / baseline (95 % interval)", "baseline MB", "this MB")


@dataclasses.dataclass(frozen=True)
class Repetition:
    """Number and kind of measurements of a case.

    Args:
        runs: turns of each checkout.
        steps: steps in a turn.
        threads: threads per op.
        memory: whether to measure peak memory too.
    """

    runs: int
    steps: int
    threads: int
    memory: bool


def compare(
    baseline: str, cases: Iterable[Case], options: Options, repetition: Repetition
) -> list[dict]:
    """Prints and returns a row for every case.

    Each checkout has one worker process. The two take turns, so that changes of the machine's
    speed affect both. The ratio of a run is that of two adjacent turns.

    Args:
        baseline: folder of the other checkout.
        cases: cases to measure.
        options: settings of all cases.
        repetition: how often to measure.
    """
    settings = {
        name: {
            "kind": name,
            "checkout": str(checkout),
            "threads": repetition.threads,
            "options": dataclasses.asdict(options),
        }
        for name, checkout in (("baseline", baseline), ("this", ROOT))
    }
    print_header(HEADER)
    rows = []
    with start_workers(WORKER, settings, {}) as workers:
        for case in cases:
            row = dataclasses.asdict(case) | _measure_times(workers, case, repetition)
            for name in settings:
                memory = case.training and repetition.memory
                row[f"{name} MB"] = _measure_memory(settings[name], case) if memory else ""
            _print_row(row)
            rows.append(row)
    return rows


def _measure_times(workers, case, repetition):
    for worker in workers.values():
        worker.ask({"case": dataclasses.asdict(case)})
    seconds = {name: [] for name in workers}
    for _, name in in_turns(workers, repetition.runs):
        seconds[name].append(workers[name].ask({"steps": repetition.steps}))
    ratios = np.divide(seconds["this"], seconds["baseline"])
    row = {f"{name} ms": 1000 * np.median(values) for name, values in seconds.items()}
    return row | dict(zip(("ratio", "low", "high"), median_and_interval(ratios)))


def _measure_memory(settings, case):
    with start_workers(WORKER, {"": settings}, {}) as workers:
        return workers[""].ask({"memory": dataclasses.asdict(case)})


def _print_row(row):
    cells = [str(row[field.name]) for field in dataclasses.fields(Case)]
    cells += [f"{row[f'{name} ms']:.1f}" for name in ("baseline", "this")]
    cells.append(format_interval(row["ratio"], row["low"], row["high"], digits=3))
    megabytes = (row[f"{name} MB"] for name in ("baseline", "this"))
    print_cells([*cells, *("" if x == "" else f"{x:.0f}" for x in megabytes)])
