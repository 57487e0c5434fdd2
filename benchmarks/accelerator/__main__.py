"""Measures relative attention on the accelerator of the Keras backend, or on the CPU.

    python -m benchmarks.accelerator --output_dir=runs/accelerator
    KERAS_BACKEND=jax python -m benchmarks.accelerator --lengths=1024,4096 --dtypes=bfloat16

Parts, all forward and backward:
    core      attention of given queries, keys and values
    layer     the multi-head attention layer
    training  a training step of a Transformer, in source and target tokens per second

Implementations:
    plain            this library without tables; in `layer` keras.layers.MultiHeadAttention; in
                     `training` sinusoidal position encodings
    flash            jax.nn.dot_product_attention or scaled_dot_product_attention of PyTorch
    relative         relative attention with its default settings
    relative_linear  relative attention with memory linear in length

All implementations take turns in one process. Before that, a new process for each implementation
measures peak memory: that of the device on accelerators, and that of the process on CPUs. Writes
accelerator.md and accelerator.csv. Plain attention above --plain_max_length is left out, because
its memory is quadratic in length.
"""

import dataclasses
import itertools
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# This process and those that measure memory share the device.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

from absl import app, flags

from benchmarks import devices
from benchmarks.attention.steps import Case
from benchmarks.comparison import (
    HEADER,
    Comparison,
    cells_of,
    implementations,
    peak_memory,
    take_turns,
)
from benchmarks.flag_checks import check_no_arguments, check_values, positive_integers
from benchmarks.memory import measure_in_new_process
from benchmarks.tables import write_csv

FLAGS = flags.FLAGS
PARTS, DIRECTIONS = ("core", "layer", "training"), ("bidirectional", "causal")
DTYPES = ("float32", "bfloat16")
flags.DEFINE_list("lengths", "256,512,1024,2048,4096,8192,16384", "Numbers of positions.")
flags.DEFINE_list("parts", list(PARTS), "Parts: core, layer, training.")
flags.DEFINE_list("directions", list(DIRECTIONS), "Directions: bidirectional, causal.")
flags.DEFINE_list("dtypes", list(DTYPES), "Dtypes: float32, bfloat16.")
flags.DEFINE_integer("batch_tokens", 16384, "Positions per batch.", lower_bound=1)
flags.DEFINE_integer("max_relative_position", 16, "Clipping distance K.", lower_bound=1)
flags.DEFINE_integer(
    "plain_max_length",
    16384,
    "Maximum length at which plain attention is measured.",
    lower_bound=1,
)
flags.DEFINE_integer("runs", 20, "Turns of each implementation.", lower_bound=1)
flags.DEFINE_bool("xla", True, "Compile with XLA on TensorFlow.")
flags.DEFINE_bool("memory", True, "Measure peak memory.")
flags.DEFINE_string("preset", "shaw_base", "Architecture of the Transformer in `training`.")
flags.DEFINE_integer("vocab_size", 32000, "Vocabulary size of the Transformer.", lower_bound=4)
flags.DEFINE_integer("pairs", 64, "Sentence pairs per batch of `training`.", lower_bound=1)
flags.DEFINE_integer("pair_length", 64, "Length of both sides of a pair.", lower_bound=2)
flags.DEFINE_string("output_dir", "runs/accelerator", "Folder of the results.")
flags.DEFINE_string(
    "memory_of",
    None,
    "Print only the peak memory in MB of IMPLEMENTATION,PART,DIRECTION,DTYPE,LENGTH,BATCH,K.",
)
COLUMNS = [field.name for field in dataclasses.fields(Case)] + [
    *("implementation", "milliseconds", "megabytes", "tokens_per_second"),
    *(f"{column}_{of}" for of in ("plain", "flash") for column in ("over", "low", "high")),
]


def get_cases() -> list[Case]:
    """Returns a case for every combination of the flags, except for the part `training`."""
    check_values("parts", PARTS)
    check_values("directions", DIRECTIONS)
    check_values("dtypes", DTYPES)
    parts = [part for part in FLAGS.parts if part != "training"]
    k = FLAGS.max_relative_position
    settings = itertools.product(
        parts, FLAGS.directions, FLAGS.dtypes, positive_integers("lengths")
    )
    return [Case(*values, max(1, FLAGS.batch_tokens // values[-1]), k) for values in settings]


def names_of(case: Case) -> list[str]:
    """Returns the implementations that are measured for a case."""
    is_long = case.length > FLAGS.plain_max_length
    return [name for name in implementations() if name != "plain" or not is_long]


def measure_memory(case: Case, name: str) -> float | None:
    """Returns the peak memory of an implementation in a new process in MB, if it is measured."""
    if not FLAGS.memory:
        return None
    # All but the passes, which are both.
    of = name, *dataclasses.astuple(case)[:-1]
    return measure_in_new_process("benchmarks.accelerator", of, {"xla": FLAGS.xla})


def print_memory(implementation, part, direction, dtype, *sizes):
    """Prints the peak memory of an implementation. Sizes are length, batch size and K."""
    case = Case(part, direction, dtype, *map(int, sizes))
    print(f"{peak_memory(implementation, case, xla=FLAGS.xla):.1f}")


def measure(comparison: Comparison) -> list[dict]:
    """Returns the rows of a comparison."""
    steps = {name: make() for name, make in comparison.makers.items()}
    for step in steps.values():
        step()
        step()
    return comparison.rows(take_turns(steps, FLAGS.runs))


def measure_attention(case: Case, megabytes: dict) -> list[dict]:
    """Returns the rows of a case, with peak memory."""
    rows = measure(Comparison.of_attention(case, names_of(case), xla=FLAGS.xla))
    return [row | {"megabytes": megabytes[case, row["implementation"]]} for row in rows]


def measure_training(dtype: str) -> list[dict]:
    """Returns the rows of the training step."""
    sizes = FLAGS.vocab_size, FLAGS.pairs, FLAGS.pair_length
    return measure(Comparison.of_training(dtype, FLAGS.preset, sizes))


def markdown(cells: list[str]) -> str:
    """Returns a line of the Markdown table."""
    return "| " + " | ".join(cells) + " |"


def main(argv):
    check_no_arguments(argv)
    if FLAGS.memory_of:
        print_memory(*FLAGS.memory_of.split(","))
        return
    cases, output_dir = get_cases(), Path(FLAGS.output_dir)
    # Before this process uses the device.
    megabytes = {(case, n): measure_memory(case, n) for case in cases for n in names_of(case)}
    lines = [devices.describe(), "", markdown(HEADER), "|" + " --- |" * len(HEADER)]
    print("\n".join(lines), flush=True)
    rows = []
    measurements = [lambda case=case: measure_attention(case, megabytes) for case in cases]
    if "training" in FLAGS.parts:
        measurements += [lambda dtype=dtype: measure_training(dtype) for dtype in FLAGS.dtypes]
    for measure in measurements:
        rows += (measured := measure())
        lines += (new := [markdown(cells_of(row)) for row in measured])
        print("\n".join(new), flush=True)
    write_csv(output_dir / "accelerator.csv", COLUMNS, rows)
    (output_dir / "accelerator.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    app.run(main)
