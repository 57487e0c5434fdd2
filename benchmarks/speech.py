"""Measures the attention of transformers' speech models, as ratios to transformers.

    python -m benchmarks.speech
    python -m benchmarks.speech --parts=attention --lengths=500 --passes=both --nomemory
    python -m benchmarks.speech --parts=model --implementations=attend --batch_size=4 \
        --padding=none,masked --lengths=3000,12000

Parts:
    attention   attention layer of w2v-BERT 2.0: 16 heads of 64, 64 left and 8 right
    encoder     encoder layer of w2v-BERT 2.0
    model       w2v-BERT 2.0 with one encoder layer, which takes padding masks
    vits        attention layer of VITS's text encoder: 2 heads of 96, window 4

Implementations:
    eager    transformers, attn_implementation="eager"
    sdpa     transformers, attn_implementation="sdpa", not for VITS
    attend   this library, by `replace_attention`

Padding, for `model` only:
    none      no mask
    masked    a mask `[B, T]`: the first sequence is whole, the others are up to a quarter shorter

float32. Modules have random weights and the published configurations. All implementations run in
one process on one thread and take turns. Prints median ratios to each implementation of
transformers with bootstrapped 95 % intervals. Each peak memory is that of a separate process.
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
flags.DEFINE_integer("batch_size", 1, "Sequences of a batch.", lower_bound=1)
for _name, _default, _values in (
    ("parts", "attention,encoder,vits", "attention, encoder, model, vits"),
    ("passes", "forward,both", "forward (inference), both (and backward)"),
    ("padding", "none", "none, masked"),
    ("implementations", "eager,sdpa,attend", "eager, sdpa, attend"),
):
    _known = set(_values.replace(",", "").split())
    flags.DEFINE_list(_name, _default, f"Values among {_values}.")
    flags.register_validator(_name, _known.issuperset, f"Expected values among {_values}.")
flags.DEFINE_integer("runs", 10, "Turns of each implementation.", lower_bound=1)
flags.DEFINE_bool("memory", True, "Also measure peak memory.")
MEMORY = "Print only the peak MB of IMPLEMENTATION,PART,PASSES,LENGTH,PADDING."
flags.DEFINE_string("memory_of", None, MEMORY)


def make_case(implementation: str, part: str, passes: str, length: str, padding: str):
    """Returns the function that runs a step."""
    is_padded, size = padding == "masked", FLAGS.batch_size
    return make_step(implementation, part, passes, int(length), size, is_padded=is_padded)


def peak_memory(implementation: str, part: str, passes: str, length: str, padding: str) -> float:
    """Returns the peak memory of two steps in MB, minus the memory in use before them.

    Call it once per process: memory that a process has freed may be reused without being counted.
    """
    # The first step of a process allocates memory that does not depend on the length.
    make_case(implementation, part, passes, "8", padding)()
    step = make_case(implementation, part, passes, length, padding)
    before = memory.reset_peak()
    step()
    step()
    return memory.peak() - before


def peak_memory_of_process(*case) -> str:
    """Returns the peak memory in MB, measured in a new process."""
    command = [sys.executable, "-m", "benchmarks.speech", f"--memory_of={','.join(case)}"]
    command.append(f"--batch_size={FLAGS.batch_size}")
    run = subprocess.run(
        command, cwd=ROOT, env=child_environment(), check=True, capture_output=True, text=True
    )
    return run.stdout.strip()


def print_rows(part: str, passes: str, length: str, padding: str):
    """Measures all implementations of a part and prints a row for each."""
    # VITS of transformers refuses sdpa.
    names = [name for name in FLAGS.implementations if (part, name) != ("vits", "sdpa")]
    steps = {name: make_case(name, part, passes, length, padding) for name in names}
    for step in steps.values():
        step()
    times = take_turns(steps, FLAGS.runs)
    for name, seconds in times.items():
        has_ratio = "attend" in times and name != "attend"
        ratio = format_median(np.divide(times["attend"], seconds)) if has_ratio else "–"
        case = name, part, passes, length, padding
        peak = peak_memory_of_process(*case) if FLAGS.memory else "–"
        milliseconds = f"{1000 * np.median(seconds):.2f}"
        print_cells([part, passes, padding, length, name, milliseconds, ratio, peak])


def main(_):
    torch.set_num_threads(1)
    if FLAGS.memory_of:
        print(f"{peak_memory(*FLAGS.memory_of.split(',')):.1f}")
        return
    columns = ["part", "passes", "padding", "n", "implementation", "ms", "attend / it", "peak MB"]
    print_header(columns)
    for part, passes in itertools.product(FLAGS.parts, FLAGS.passes):
        lengths = FLAGS.vits_lengths if part == "vits" else FLAGS.lengths
        for length, padding in itertools.product(lengths, FLAGS.padding):
            if padding == "none" or part == "model":
                print_rows(part, passes, length, padding)


if __name__ == "__main__":
    app.run(main)
