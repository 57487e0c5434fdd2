"""Compares relative attention of this checkout with that of another one.

    python -m benchmarks.attention --baseline=../other_checkout --passes=both --parts=layer

Each checkout has a worker process, which this module is too. The two take turns, so that changes of
the machine's speed affect both. The ratio of a run is that of two adjacent turns.
"""

import dataclasses
import sys
import time
from pathlib import Path

import numpy as np
from absl import app, flags

from benchmarks.tables import (
    format_interval,
    median_and_interval,
    print_cells,
    print_header,
    write_csv,
)
from benchmarks.workers import ROOT, answer_all, in_turns, start_workers, tensorflow_with_threads

FLAGS = flags.FLAGS
HEADER = ("part", "direction", "passes", "K", "n", "baseline ms", "this ms")
HEADER += ("this / baseline (95 % interval)", "baseline MB", "this MB")


def define_flags():
    """Defines the flags of `compare`, in addition to those of `benchmarks.attention`."""
    flags.DEFINE_string(
        "baseline", None, "Folder of another checkout of this project to compare this one with."
    )
    flags.DEFINE_integer("steps", 3, "Steps in a turn, with --baseline.", lower_bound=1)


def compare(cases, path: Path):
    """Prints a row for every case, and writes them to a CSV file."""
    if not (Path(FLAGS.baseline) / "t2t_relpos").is_dir():
        raise app.UsageError(
            f"--baseline must be a checkout of this project. Received: {FLAGS.baseline}."
        )
    settings = {
        name: {"kind": name, "checkout": str(folder), "threads": FLAGS.threads, "xla": FLAGS.xla}
        for name, folder in (("baseline", FLAGS.baseline), ("this", ROOT))
    }
    print_header(HEADER)
    rows = []
    with start_workers(__name__, settings, {}) as workers:
        for case in cases:
            rows.append(_measure(workers, settings, case))
            _print_row(rows[-1])
    write_csv(path, rows[0], rows)


def _measure(workers, settings, case):
    of = dataclasses.asdict(case)
    for worker in workers.values():
        worker.ask({"case": of})
    seconds = {name: [] for name in workers}
    for _, name in in_turns(workers, FLAGS.runs):
        seconds[name].append(workers[name].ask({"steps": FLAGS.steps}))
    ratios = np.divide(seconds["this"], seconds["baseline"])
    row = of | {f"{name} ms": 1000 * np.median(values) for name, values in seconds.items()}
    row |= dict(zip(("ratio", "low", "high"), median_and_interval(ratios)))
    for name, each in settings.items():
        row[f"{name} MB"] = ""
        if case.training and FLAGS.memory:
            with start_workers(__name__, {name: each}, {}) as new:
                row[f"{name} MB"] = new[name].ask({"memory": of})
    return row


def _print_row(row):
    cells = ["part", "direction", "passes", "max_relative_position", "length"]
    cells = [str(row[name]) for name in cells]
    cells += [f"{row[f'{name} ms']:.1f}" for name in ("baseline", "this")]
    cells.append(format_interval(row["ratio"], row["low"], row["high"], digits=3))
    megabytes = (row[f"{name} MB"] for name in ("baseline", "this"))
    print_cells([*cells, *("" if x == "" else f"{x:.0f}" for x in megabytes)])


def make_reply(settings: dict):
    """Returns the function that answers messages in a worker.

    Messages: {"case": CASE} builds a step; {"steps": N} returns the mean seconds of N steps;
    {"memory": CASE} returns the peak memory of a step in MB and must be the only message.
    """
    checkout = Path(settings["checkout"]).resolve()
    sys.path.insert(0, str(checkout))
    tensorflow_with_threads(settings["threads"])
    import t2t_relpos

    imported = Path(t2t_relpos.__file__).parents[1].resolve()
    if imported != checkout:
        raise ImportError(f"Expected t2t_relpos of {checkout}. Received: that of {imported}.")
    from benchmarks.attention.steps import Case, attention_step
    from benchmarks.comparison import peak_memory

    step, xla = None, settings["xla"]

    def reply(message):
        nonlocal step
        if "memory" in message:
            return peak_memory("relative", Case(**message["memory"]), xla=xla)
        if "case" in message:
            # Free the previous step before the new one is built.
            step = None
            step = attention_step("relative", Case(**message["case"]), xla=xla)
            step()
            step()
            return None
        start = time.perf_counter()
        for _ in range(message["steps"]):
            step()
        return (time.perf_counter() - start) / message["steps"]

    return reply


if __name__ == "__main__":
    answer_all(make_reply)
