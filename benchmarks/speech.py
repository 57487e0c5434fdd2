"""Measures the attention of transformers' speech models, as ratios to transformers.

    python -m benchmarks.speech
    python -m benchmarks.speech --parts=attention --lengths=500 --passes=both --nomemory

Parts:
    attention   attention layer of w2v-BERT 2.0: 16 heads of 64, 64 left and 8 right
    encoder     encoder layer of w2v-BERT 2.0
    vits        attention layer of VITS's text encoder: 2 heads of 96, window 4

Implementations:
    eager    transformers, attn_implementation="eager"
    sdpa     transformers, attn_implementation="sdpa", not for VITS
    attend   this library, by `replace_attention`

Batch 1, float32, no padding. Modules have random weights and the published configurations. All
implementations run in one process on one thread and take turns. Prints median ratios to each
implementation of transformers with bootstrapped 95 % intervals. Each peak memory, of forward and
backward, is that of a separate process.
"""

import itertools
import os
import subprocess
import sys

os.environ["KERAS_BACKEND"] = "torch"

import numpy as np
import torch
from absl import app, flags

from benchmarks import memory
from benchmarks.attention.speech_steps import make_step
from benchmarks.tables import format_median, print_cells, print_header
from benchmarks.workers import ROOT, child_environment, take_turns

FLAGS = flags.FLAGS
flags.DEFINE_list("lengths", "500,1500,3000", "Numbers of frames of w2v-BERT 2.0.")
flags.DEFINE_list("vits_lengths", "200,2000", "Numbers of characters of VITS.")
flags.DEFINE_list("parts", ["attention", "encoder", "vits"], "Parts: attention, encoder, vits.")
flags.DEFINE_list("passes", ["forward", "both"], "forward (inference), both (and backward).")
for _name, _values in {"parts": "attention, encoder, vits", "passes": "forward, both"}.items():
    _known = set(_values.split(", "))
    flags.register_validator(_name, _known.issuperset, f"Expected values among {_values}.")
flags.DEFINE_integer("runs", 10, "Turns of each implementation.", lower_bound=1)
flags.DEFINE_bool("memory", True, "Also measure peak memory, with --passes=both.")
MEMORY = "Print only the peak MB, forward and backward, of IMPLEMENTATION,PART,LENGTH."
flags.DEFINE_string("memory_of", None, MEMORY)


def peak_memory(implementation: str, part: str, length: str) -> float:
    """Returns the peak memory of two steps in MB, minus the memory in use before them.

    Call it once per process: memory that a process has freed may be reused without being counted.
    """
    # The first step of a process allocates memory that does not depend on the length.
    make_step(implementation, part, "both", 8)()
    step = make_step(implementation, part, "both", int(length))
    before = memory.reset_peak()
    step()
    step()
    return memory.peak() - before


def peak_memory_of_process(*case) -> str:
    """Returns the peak memory in MB, measured in a new process."""
    command = [sys.executable, "-m", "benchmarks.speech", f"--memory_of={','.join(case)}"]
    run = subprocess.run(
        command, cwd=ROOT, env=child_environment(), check=True, capture_output=True, text=True
    )
    return run.stdout.strip()


def print_rows(part: str, passes: str, length: str):
    """Measures all implementations of a part and prints a row for each."""
    names = ["eager", "attend"] if part == "vits" else ["eager", "sdpa", "attend"]
    steps = {name: make_step(name, part, passes, int(length)) for name in names}
    for step in steps.values():
        step()
    times = take_turns(steps, FLAGS.runs)
    for name, seconds in times.items():
        ratio = format_median(np.divide(times["attend"], seconds)) if name != "attend" else "–"
        has_memory = FLAGS.memory and passes == "both"
        peak = peak_memory_of_process(name, part, length) if has_memory else "–"
        milliseconds = f"{1000 * np.median(seconds):.2f}"
        print_cells([part, passes, length, name, milliseconds, ratio, peak])


def main(_):
    torch.set_num_threads(1)
    if FLAGS.memory_of:
        print(f"{peak_memory(*FLAGS.memory_of.split(',')):.1f}")
        return
    print_header(["part", "passes", "n", "implementation", "ms", "attend / it", "peak MB"])
    for part, passes in itertools.product(FLAGS.parts, FLAGS.passes):
        for length in FLAGS.vits_lengths if part == "vits" else FLAGS.lengths:
            print_rows(part, passes, length)


if __name__ == "__main__":
    app.run(main)
