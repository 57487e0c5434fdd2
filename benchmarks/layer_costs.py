"""What a layer costs against length: measured, beside the complexities of Vaswani et al. 2017, Table 1.

    python benchmarks/layer_costs.py --output_dir=runs/layer_costs

One training step (forward and backward) of one layer on one sequence: self-attention, the same with relative positions, the same
restricted to a window, a recurrent layer and a convolution. Times are medians of rounds in which the layers take turns; peak
memory is measured in a process of its own for every layer and length. Prints a table, writes layer_costs.csv and (with the extra
[plots]) layer_costs.png.
"""

import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

from benchmarks.common import memory
from benchmarks.common.pyplot import import_pyplot
from benchmarks.common.tables import print_cells, print_header, write_csv
from t2t_relpos import RelativeMultiHeadAttention

FLAGS = flags.FLAGS
flags.DEFINE_list("lengths", ["512", "1024", "2048", "4096"], "Lengths n.")
flags.DEFINE_integer("width", 256, "Width d of the layers.", lower_bound=8)
flags.DEFINE_integer("heads", 4, "Attention heads.", lower_bound=1)
flags.DEFINE_integer("max_relative_position", 16, "K.", lower_bound=0)
flags.DEFINE_integer("window", 64, "r, the window of the restricted layer.", lower_bound=1)
flags.DEFINE_integer("kernel", 3, "k, the width of the convolution.", lower_bound=1)
flags.DEFINE_integer("rounds", 7, "Measured rounds.", lower_bound=1)
flags.DEFINE_integer("threads", 1, "Threads that one operation may use.", lower_bound=1)
flags.DEFINE_string("output_dir", "runs/layer_costs", "Where the table and the plot are written.")
flags.DEFINE_string("memory_of", None, "Internal: measure the memory of LAYER,LENGTH and print it.")

# Name -> complexity per layer, sequential operations, longest path (Vaswani et al. 2017, Table 1).
COMPLEXITIES = {
    "self-attention": ("O(n²·d)", "O(1)", "O(1)"),
    "relative": ("O(n²·d)", "O(1)", "O(1)"),
    "restricted relative": ("O(r·n·d)", "O(1)", "O(n/r)"),
    "recurrent": ("O(n·d²)", "O(n)", "O(n)"),
    "convolutional": ("O(k·n·d²)", "O(1)", "O(log_k n)"),
}


def make_step(name: str, length: int):
    """One training step of a layer on a sequence: a function without arguments."""
    settings = {"num_heads": FLAGS.heads, "key_dim": FLAGS.width // FLAGS.heads}
    layer = {
        "self-attention": lambda: keras.layers.MultiHeadAttention(**settings),
        "relative": lambda: RelativeMultiHeadAttention(
            max_relative_position=FLAGS.max_relative_position, **settings
        ),
        "restricted relative": lambda: RelativeMultiHeadAttention(
            max_relative_position=FLAGS.max_relative_position,
            sliding_window=FLAGS.window,
            **settings,
        ),
        "recurrent": lambda: keras.layers.LSTM(FLAGS.width, return_sequences=True),
        "convolutional": lambda: keras.layers.Conv1D(FLAGS.width, FLAGS.kernel, padding="same"),
    }[name]()
    x = tf.constant(np.random.default_rng(0).normal(size=(1, length, FLAGS.width)), tf.float32)

    def call(inputs):
        return layer(inputs, inputs) if "attention" in name or "relative" in name else layer(inputs)

    call(x[:, :8])
    weights = [weight.value for weight in layer.trainable_weights]

    @tf.function(jit_compile=False)
    def step(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(call(inputs) ** 2)
        return tape.gradient(loss, [inputs, *weights])

    return lambda: [gradient.numpy() for gradient in step(x) if gradient is not None][0]


def measure_times(length: int) -> dict[str, float]:
    """Median seconds of a step of every layer, the layers taking turns."""
    steps = {name: make_step(name, length) for name in COMPLEXITIES}
    times = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(FLAGS.rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def print_memory(name: str, length: int):
    """Prints by how much the peak of two steps is above what the process held before."""
    make_step(name, 8)()
    step = make_step(name, length)
    print(f"{memory.peak_increase(step):.1f}")


def measure_memory(name: str, length: int) -> float:
    """Peak memory of a layer in a process of its own, in MB above the start."""
    flags_of_layers = ("width", "heads", "max_relative_position", "window", "kernel", "threads")
    return memory.measure_in_new_process(
        "benchmarks.layer_costs",
        (name, length),
        {flag: FLAGS[flag].value for flag in flags_of_layers},
    )


def print_table(rows: list[dict]):
    """Prints the measurements as a Markdown table."""
    lengths = sorted({row["length"] for row in rows})
    header = ["layer", "per layer", "sequential", "path", *(f"n = {length}" for length in lengths)]
    print_header(header)
    for name, complexity in COMPLEXITIES.items():
        cells = [
            f"{row['milliseconds']:.1f} ms, {row['megabytes']:.0f} MB"
            for length in lengths
            for row in rows
            if (row["layer"], row["length"]) == (name, length)
        ]
        print_cells([name, *complexity, *cells])


def plot(pyplot, rows: list[dict], path: Path):
    """Draws time and memory against length."""
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4))
    for axis, key, label in zip(
        axes, ("milliseconds", "megabytes"), ("ms per training step", "MB above the start")
    ):
        for name in COMPLEXITIES:
            points = [(row["length"], row[key]) for row in rows if row["layer"] == name]
            axis.plot(*zip(*points), marker="o", label=f"{name} {COMPLEXITIES[name][0]}")
        axis.set(xscale="log", yscale="log", xlabel="length n", ylabel=label)
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main(argv):
    del argv
    tf.get_logger().setLevel("ERROR")  # every layer and length is a graph of its own, on purpose
    tf.config.threading.set_intra_op_parallelism_threads(FLAGS.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    if FLAGS.memory_of:
        name, length = FLAGS.memory_of.rsplit(",", 1)
        print_memory(name, int(length))
        return
    rows = []
    for length in map(int, FLAGS.lengths):
        times = measure_times(length)
        for name, seconds in times.items():
            row = {
                "layer": name,
                "length": length,
                "milliseconds": 1000 * seconds,
                "megabytes": measure_memory(name, length),
            }
            rows.append(row)
            print(
                f"n = {length}: {name} {row['milliseconds']:.1f} ms, {row['megabytes']:.0f} MB",
                file=sys.stderr,
                flush=True,
            )
    directory = Path(FLAGS.output_dir)
    directory.mkdir(parents=True, exist_ok=True)
    write_csv(directory / "layer_costs.csv", rows[0], rows)
    print_table(rows)
    if (pyplot := import_pyplot()) is not None:
        plot(pyplot, rows, directory / "layer_costs.png")


if __name__ == "__main__":
    app.run(main)
