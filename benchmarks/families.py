"""Measures families of models of transformers before and after the exchange of their attention.

    python -m benchmarks.families
    python -m benchmarks.families --families='w2v-BERT 2.0,Granite Speech' --runs=20
    python -m benchmarks.families --families='w2v-BERT 2.0' --part=encoder --batch_size=1 \
        --padded=false --lengths=500,1500,3000

One row for each family, or kind of layer, and length: an attention layer at the size of the
published models, with the mask that the encoder hands on, forward and backward. A batch of 4 is
padded by up to a quarter. --part=encoder measures the encoder with one layer. float32, random
weights, one thread. Each implementation runs in a process of its own, and they take turns:

    eager, sdpa    transformers
    attend         this library, by `replace_attention`

Prints the median times and peaks, the median ratio to the fastest implementation of transformers
with its bootstrapped 95 % interval, and the ratio to the one with the least memory. A peak is that
of two steps, minus the memory in use before them.
"""

import os

os.environ["KERAS_BACKEND"] = "torch"

import numpy as np
from absl import app, flags

from benchmarks.attention.family_steps import CASES
from benchmarks.tables import format_median, print_cells, print_header
from benchmarks.workers import ask_in_turns

FLAGS = flags.FLAGS
flags.DEFINE_list("families", list(CASES), "Names of families.")
flags.register_validator("families", set(CASES).issuperset, f"Expected values among {[*CASES]}.")
flags.DEFINE_list("lengths", [], "Positions of a batch entry. Default: that of the family.")
flags.DEFINE_integer("batch_size", 4, "Sequences of a batch.", lower_bound=1)
flags.DEFINE_bool("padded", True, "Whether sequences but the first end in padding.")
flags.DEFINE_enum("part", "attention", ["attention", "encoder"], "What is measured.")
flags.DEFINE_enum("passes", "both", ["forward", "both"], "Forward, or forward and backward.")
flags.DEFINE_integer("runs", 10, "Turns of each implementation.", lower_bound=1)


def measure(family: str, length: int) -> dict:
    """Returns (seconds of each turn, peak megabytes) of each implementation."""
    options = {"batch_size": FLAGS.batch_size, "part": FLAGS.part, "passes": FLAGS.passes}
    settings = {
        name: {
            "kind": name,
            "threads": 1,
            "family": family,
            "length": length,
            "options": options | {"is_padded": FLAGS.padded},
        }
        for name in (*CASES[family].implementations, "attend")
    }
    questions = [["memory"], ["time"] * FLAGS.runs]
    peaks, times = ask_in_turns("benchmarks.attention.family_steps", settings, questions)
    return {
        name: ([x["seconds"] for x in times[name]], peaks[name][0]["result"]) for name in settings
    }


def print_row(family: str, length: int):
    """Measures all implementations of a family and prints their row."""
    results = measure(family, length)
    seconds, peak = results.pop("attend")
    fastest = min(results, key=lambda name: np.median(results[name][0]))
    least = min(results, key=lambda name: results[name][1])
    cells = [f"{name} {np.median(x):.2f} s, {mb:,.0f} MB" for name, (x, mb) in results.items()]
    ratio = format_median(np.divide(seconds, results[fastest][0]))
    print_cells(
        [
            family,
            f"{length:,}",
            "; ".join(cells),
            f"{np.median(seconds):.2f} s, {peak:,.0f} MB",
            f"{ratio} of {fastest}",
            f"{peak / results[least][1]:.2f} of {least}",
        ]
    )


def main(_):
    print_header(["family", "length", "transformers", "attend", "time", "memory"])
    for family in FLAGS.families:
        for length in map(int, FLAGS.lengths or [CASES[family].length]):
            print_row(family, length)


if __name__ == "__main__":
    app.run(main)
