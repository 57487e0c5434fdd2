"""Measures time and memory of relative attention, as ratios to plain attention.

    python -m benchmarks.attention --output_dir=runs/attention
    python -m benchmarks.attention --lengths=512,2048 --parts=core --max_relative_positions=2,16
    python -m benchmarks.attention --xla --parts=core,layer --passes=both
    KERAS_BACKEND=jax python -m benchmarks.attention --parts=core,layer --passes=both

Parts:
    core      attention of given queries, keys and values
    layer     the multi-head attention layer
    encoder   a pre-norm encoder layer: attention, feed-forward network, layer normalization

Implementations:
    plain             this library without tables, the reference of ratios in `core`
    keras             keras.layers.MultiHeadAttention, the reference of ratios in the other parts
    relative          this library
    relative_linear   this library with memory linear in length (--compare_flash)
    tensor2tensor     tensor2tensor's algorithm, up to --tensor2tensor_max_length (`core` only)

All implementations run in one process and take turns; a batch has about 2,048 tokens. Peak memory
is measured in a new process for each implementation. Prints median ratios with bootstrapped 95 %
intervals; writes attention.csv.
"""

import itertools
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from absl import app, flags

from benchmarks.attention import compare_checkouts
from benchmarks.attention.compiled_steps import set_threads
from benchmarks.attention.steps import Case, attention_step
from benchmarks.comparison import peak_memory, take_turns
from benchmarks.flag_checks import check_no_arguments, check_values, positive_integers
from benchmarks.memory import measure_in_new_process
from benchmarks.tables import (
    format_interval,
    median_and_interval,
    print_cells,
    print_header,
    write_csv,
)

FLAGS = flags.FLAGS
IMPLEMENTATIONS = {
    "core": ("plain", "relative", "relative_linear", "tensor2tensor"),
    "layer": ("keras", "relative", "relative_linear"),
    "encoder": ("keras", "relative", "relative_linear"),
}
DIRECTIONS, PASSES = ("bidirectional", "causal"), ("forward", "both")
TOKENS_PER_BATCH = 2048
CASE = ("part", "direction", "passes", "K", "n")
HEADER = (*CASE, "implementation", "ms", "ratio", "MB")
flags.DEFINE_list("lengths", "32,64,128,256,512,1024,2048,4096", "Sequence lengths n.")
flags.DEFINE_list("parts", ["core", "encoder"], "Parts: core, layer, encoder.")
flags.DEFINE_bool("xla", False, "Compile with XLA on TensorFlow.")
flags.DEFINE_bool("compare_flash", False, "Also measure attention with memory linear in length.")
flags.DEFINE_list("directions", list(DIRECTIONS), "Directions: bidirectional, causal.")
flags.DEFINE_list(
    "passes", list(PASSES), "Passes: forward (inference), both (forward and backward)."
)
flags.DEFINE_list("max_relative_positions", ["16"], "Clipping distances K.")
flags.DEFINE_integer("runs", 30, "Turns of each implementation.", lower_bound=1)
flags.DEFINE_integer("threads", 1, "Threads per op.", lower_bound=1)
flags.DEFINE_integer(
    "tensor2tensor_max_length", 1024, "Maximum length at which tensor2tensor is measured."
)
flags.DEFINE_bool("memory", True, "Measure peak memory.")
flags.DEFINE_string("output_dir", "runs/attention", "Folder for the table.")
flags.DEFINE_string(
    "memory_of",
    None,
    "Print only the peak memory in MB of IMPLEMENTATION,PART,DIRECTION,PASSES,K,LENGTH.",
)
compare_checkouts.define_flags()


def get_case(part, direction, passes, k, length) -> Case:
    """Returns a case in float32."""
    n = int(length)
    return Case(part, direction, "float32", n, max(1, TOKENS_PER_BATCH // n), int(k), passes)


def get_cases() -> list[Case]:
    """Returns a case for every combination of the flags."""
    check_values("parts", IMPLEMENTATIONS)
    check_values("directions", DIRECTIONS)
    check_values("passes", PASSES)
    k, n = positive_integers("max_relative_positions"), positive_integers("lengths")
    settings = itertools.product(FLAGS.parts, FLAGS.directions, FLAGS.passes, k, n)
    return [get_case(*values) for values in settings]


def measure(case: Case) -> list[dict]:
    """Returns a row for every implementation."""
    steps = {
        name: attention_step(name, case, xla=FLAGS.xla)
        for name in IMPLEMENTATIONS[case.part]
        if (name != "tensor2tensor" or case.length <= FLAGS.tensor2tensor_max_length)
        and (name != "relative_linear" or FLAGS.compare_flash)
    }
    for step in steps.values():
        step()
        step()
    times = take_turns(steps, FLAGS.runs)
    k, n = case.max_relative_position, case.length
    settings = dict(zip(CASE, (case.part, case.direction, case.passes, k, n)))
    reference = times[next(iter(steps))]
    rows = []
    for name, seconds in times.items():
        row = settings | {"implementation": name, "ms": 1000 * np.median(seconds)}
        interval = median_and_interval(np.divide(seconds, reference))
        row |= dict(zip(("ratio", "low", "high"), interval)) | {"MB": ""}
        if FLAGS.memory and case.training:
            flag_values = {"threads": FLAGS.threads, "xla": FLAGS.xla}
            of = name, *settings.values()
            row["MB"] = measure_in_new_process("benchmarks.attention", of, flag_values)
        rows.append(row)
    return rows


def print_row(row: dict):
    """Prints a row of `measure`."""
    ratio = format_interval(row["ratio"], row["low"], row["high"])
    megabytes = "" if row["MB"] == "" else f"{row['MB']:.0f}"
    cells = [*(str(row[name]) for name in HEADER[:6]), f"{row['ms']:.2f}", ratio, megabytes]
    print_cells(cells)


def main(argv):
    check_no_arguments(argv)
    set_threads(FLAGS.threads)
    if FLAGS.memory_of:
        implementation, *case = FLAGS.memory_of.split(",")
        print(f"{peak_memory(implementation, get_case(*case), xla=FLAGS.xla):.1f}")
        return
    cases, output_dir = get_cases(), Path(FLAGS.output_dir)
    if FLAGS.baseline:
        compare_checkouts.compare(cases, output_dir / "baseline.csv")
        return
    print_header(HEADER)
    rows = []
    for case in cases:
        rows += (of_case := measure(case))
        for row in of_case:
            print_row(row)
    write_csv(output_dir / "attention.csv", rows[0], rows)


if __name__ == "__main__":
    app.run(main)
