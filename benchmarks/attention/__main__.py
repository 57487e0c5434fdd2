"""Measures time and memory of relative attention, as ratios to plain attention.

    python -m benchmarks.attention --output_dir=runs/attention
    python -m benchmarks.attention --lengths=512,2048 --parts=core --max_relative_positions=2,16
    python -m benchmarks.attention --baseline=../other_checkout --passes=both --parts=layer
    python -m benchmarks.attention --xla --parts=core,attention --passes=both
    KERAS_BACKEND=jax python -m benchmarks.attention --parts=core,attention --passes=both

Parts:
    core    attention of given queries, keys and values
    attention
            the multi-head attention layer. Its reference is keras.layers.MultiHeadAttention
    layer   a pre-norm encoder layer: attention, feed-forward network, layer normalization

Implementations:
    plain          this library without tables; in `layer` also keras.layers.MultiHeadAttention.
                   The faster one is the reference of all ratios
    relative       this library
    flash          this library with memory linear in length (--compare_flash)
    tensor2tensor  tensor2tensor's algorithm, up to --tensor2tensor_max_length
    matmul         only the matrix products of plain attention: a lower bound (`core` only)

All implementations run in one process and take turns; a batch has about 2,048 tokens. Peak memory
is measured in a new process for each implementation. Prints median ratios with bootstrapped 95 %
intervals; writes attention.csv and, if matplotlib is installed, attention.png.

With --baseline, compares the relative attention of this checkout with that of another checkout of
this project. Each has a worker process; the two take turns. Writes baseline.csv.
"""

import dataclasses
import itertools
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from absl import app, flags

from benchmarks.attention import plot
from benchmarks.attention.compare_checkouts import Repetition, compare
from benchmarks.attention.compiled_steps import set_threads
from benchmarks.attention.steps import (
    IMPLEMENTATIONS,
    Case,
    Options,
    make_step,
    measure_peak_memory,
)
from benchmarks.common import memory
from benchmarks.common.bootstrap import format_interval, median_and_interval
from benchmarks.common.flag_checks import check_no_arguments, check_values, positive_integers
from benchmarks.common.pyplot import import_pyplot
from benchmarks.common.tables import print_cells, print_header, write_csv

FLAGS = flags.FLAGS
DIRECTIONS, PASSES = ("bidirectional", "causal"), ("forward", "both")
COMPARED = ("relative", "flash", "tensor2tensor", "matmul")
flags.DEFINE_list("lengths", "32,64,128,256,512,1024,2048,4096", "Sequence lengths n.")
flags.DEFINE_list("parts", ["core", "layer"], "Parts: core, attention, layer.")
flags.DEFINE_bool("xla", False, "Compile with XLA on TensorFlow.")
flags.DEFINE_bool("compare_flash", False, "Also measure attention with memory linear in length.")
flags.DEFINE_list("directions", list(DIRECTIONS), "Directions: bidirectional, causal.")
flags.DEFINE_list(
    "passes", list(PASSES), "Passes: forward (inference), both (forward and backward)."
)
flags.DEFINE_list("max_relative_positions", ["16"], "Clipping distances K.")
flags.DEFINE_bool("padding", False, "Mask the last quarter of every other sequence.")
flags.DEFINE_bool("flash_attention", False, "Use memory linear in length at all lengths.")
flags.DEFINE_float(
    "dropout", 0.0, "Dropout rate of attention weights.", lower_bound=0.0, upper_bound=0.9
)
flags.DEFINE_integer("runs", 30, "Turns of each implementation.", lower_bound=1)
flags.DEFINE_integer("threads", 1, "Threads per op.", lower_bound=1)
flags.DEFINE_integer(
    "tensor2tensor_max_length", 1024, "Maximum length at which tensor2tensor is measured."
)
flags.DEFINE_bool("memory", True, "Measure peak memory.")
flags.DEFINE_string("output_dir", "runs/attention", "Folder for the table and the plot.")
flags.DEFINE_string(
    "baseline", None, "Folder of another checkout of this project to compare this one with."
)
flags.DEFINE_integer("steps", 3, "Steps in a turn, with --baseline.", lower_bound=1)
flags.DEFINE_string(
    "memory_of",
    None,
    "Print only the peak memory in MB of IMPLEMENTATION,PART,DIRECTION,PASSES,K,LENGTH.",
)


def get_cases() -> list[Case]:
    """Returns a case for every combination of the flags."""
    check_values("parts", IMPLEMENTATIONS)
    check_values("directions", DIRECTIONS)
    check_values("passes", PASSES)
    return [
        Case(*values)
        for values in itertools.product(
            FLAGS.parts,
            FLAGS.directions,
            FLAGS.passes,
            positive_integers("max_relative_positions"),
            positive_integers("lengths"),
        )
    ]


def get_options() -> Options:
    return Options(FLAGS.padding, FLAGS.flash_attention, FLAGS.dropout, FLAGS.xla)


def measure(case: Case) -> list[dict]:
    """Returns a row for every implementation."""
    steps = {
        name: make_step(name, case, get_options())
        for name in IMPLEMENTATIONS[case.part]
        if (name != "tensor2tensor" or case.length <= FLAGS.tensor2tensor_max_length)
        and (name != "flash" or FLAGS.compare_flash)
    }
    for step in steps.values():
        step()
        step()
    times = {name: [] for name in steps}
    for _ in range(FLAGS.runs):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    references = ("keras",) if case.part == "attention" else ("plain", "keras")
    plain = min(
        (name for name in references if name in times), key=lambda name: np.median(times[name])
    )
    rows = []
    for name in steps:
        ratio, low, high = median_and_interval(np.divide(times[name], times[plain]))
        rows.append(
            dataclasses.asdict(case)
            | {"implementation": name, "milliseconds": 1000 * np.median(times[name])}
            | {"ratio": ratio, "low": low, "high": high, "plain": plain}
            | {"megabytes": measure_memory(name, case)}
        )
    return rows


def measure_memory(implementation: str, case: Case) -> float | str:
    """Returns the peak memory of a training step in a new process in MB, or "" if not measured."""
    if not FLAGS.memory or not case.training or implementation == "matmul":
        return ""
    settings = {
        name: FLAGS[name].value
        for name in ("dropout", "flash_attention", "padding", "threads", "xla")
    }
    values = implementation, *dataclasses.astuple(case)
    return memory.measure_in_new_process("benchmarks.attention", values, settings)


def print_memory(implementation, part, direction, passes, k, length):
    """Prints the result of `measure_peak_memory`."""
    case = Case(part, direction, passes, int(k), int(length))
    print(f"{measure_peak_memory(implementation, case, get_options()):.1f}")


def print_rows(rows):
    """Prints the line of a case."""
    by_name = {row["implementation"]: row for row in rows}
    plain = by_name[rows[0]["plain"]]
    cells = [str(rows[0][field.name]) for field in dataclasses.fields(Case)]
    cells.append(f"{plain['milliseconds']:.1f}")
    for name in COMPARED:
        row = by_name.get(name)
        cells.append(format_interval(row["ratio"], row["low"], row["high"]) if row else "")
    for row in (plain, by_name["relative"], by_name.get("tensor2tensor", {"megabytes": ""})):
        cells.append("" if row["megabytes"] == "" else f"{row['megabytes']:.0f}")
    print_cells(cells)


def main(argv):
    check_no_arguments(argv)
    if keras.backend.backend() == "jax" and FLAGS.threads == 1:
        # JAX reads XLA_FLAGS at the first computation.
        flag = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
    set_threads(FLAGS.threads)
    if FLAGS.memory_of:
        print_memory(*FLAGS.memory_of.split(","))
        return
    cases, output_dir = get_cases(), Path(FLAGS.output_dir)
    if FLAGS.baseline:
        if not (Path(FLAGS.baseline) / "t2t_relpos").is_dir():
            raise app.UsageError(
                f"--baseline must be a checkout of this project. Received: {FLAGS.baseline}."
            )
        repetition = Repetition(FLAGS.runs, FLAGS.steps, FLAGS.threads, FLAGS.memory)
        rows = compare(FLAGS.baseline, cases, get_options(), repetition)
        write_csv(output_dir / "baseline.csv", rows[0], rows)
        return
    header = "part", "direction", "passes", "K", "n", "plain ms", *COMPARED
    print_header([*header, "plain MB", "relative MB", "tensor2tensor MB"])
    rows = []
    for case in cases:
        rows += (of_case := measure(case))
        print_rows(of_case)
    write_csv(output_dir / "attention.csv", rows[0], rows)
    if (pyplot := import_pyplot()) is not None:
        compared = [row for row in rows if row["implementation"] in COMPARED]
        plot.plot_ratios(pyplot, compared, output_dir / "attention.png")


if __name__ == "__main__":
    app.run(main)
