"""Measures time and memory of relative attention, as ratios to plain attention.

    python -m benchmarks.attention --lengths=512,2048 --parts=core
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

All implementations run in one process on one thread and take turns; a batch has about 2,048 tokens.
Prints median ratios with bootstrapped 95 % intervals.
"""

import dataclasses
import itertools
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from absl import app, flags

from benchmarks import memory
from benchmarks.attention.compiled_steps import use_one_thread
from benchmarks.attention.steps import Case, attention_step
from benchmarks.tables import format_median, print_cells, print_header
from benchmarks.workers import take_turns

FLAGS = flags.FLAGS
TOKENS_PER_BATCH = 2048
flags.DEFINE_list("lengths", "32,64,128,256,512,1024,2048,4096", "Sequence lengths n.")
flags.DEFINE_list("parts", ["core", "encoder"], "Parts: core, layer, encoder.")
flags.DEFINE_list("passes", ["forward", "both"], "forward (inference), both (and backward).")
for _name, _values in {"parts": "core, layer, encoder", "passes": "forward, both"}.items():
    _known = set(_values.split(", "))
    flags.register_validator(_name, _known.issuperset, f"Expected values among {_values}.")
flags.DEFINE_bool("xla", False, "Compile with XLA on TensorFlow.")
flags.DEFINE_bool("compare_flash", False, "Also measure attention with memory linear in length.")
flags.DEFINE_integer("runs", 30, "Turns of each implementation.", lower_bound=1)
MEMORY = "Print only the peak MB, forward and backward, of IMPLEMENTATION,PART,DIRECTION,LENGTH."
flags.DEFINE_string("memory_of", None, MEMORY)


def get_case(part, direction, passes, length) -> Case:
    """Returns a case in float32."""
    n = int(length)
    return Case(part, direction, "float32", n, max(1, TOKENS_PER_BATCH // n), passes)


def print_times(case: Case):
    """Measures all implementations of a case and prints a row for each."""
    names = ["plain" if case.part == "core" else "keras", "relative"]
    names += ["relative_linear"] if FLAGS.compare_flash else []
    steps = {name: attention_step(name, case, xla=FLAGS.xla) for name in names}
    for step in steps.values():
        step()
        step()
    times = take_turns(steps, FLAGS.runs)
    for name, seconds in times.items():
        cells = [case.part, case.direction, case.passes, str(case.length), name]
        ratio = format_median(np.divide(seconds, times[names[0]]))
        print_cells([*cells, f"{1000 * np.median(seconds):.2f}", ratio])


def peak_memory(implementation: str, part: str, direction: str, length: str) -> float:
    """Returns the peak memory of two steps in MB, minus the memory in use before them.

    Call it once per process: memory that a process has freed may be reused without being counted.
    """
    case = get_case(part, direction, "both", length)
    # The first step of a process allocates memory that does not depend on the case.
    attention_step(implementation, dataclasses.replace(case, length=8), xla=FLAGS.xla)()
    step = attention_step(implementation, case, xla=FLAGS.xla)
    before = memory.reset_peak()
    step()
    step()
    return memory.peak() - before


def main(_):
    use_one_thread()
    if FLAGS.memory_of:
        print(f"{peak_memory(*FLAGS.memory_of.split(',')):.1f}")
        return
    print_header(["part", "direction", "passes", "n", "implementation", "ms", "ratio"])
    directions = "bidirectional", "causal"
    for values in itertools.product(FLAGS.parts, directions, FLAGS.passes, FLAGS.lengths):
        print_times(get_case(*values))


if __name__ == "__main__":
    app.run(main)
