"""Measures time and memory of layers by sequence length.

    python -m benchmarks.layer_costs --output_dir=runs/layer_costs

Runs a training step (forward and backward) of one layer on one sequence. The layers are those of
Vaswani et al. 2017, Table 1: self-attention, self-attention restricted to a window, a recurrent
layer and a convolution. Self-attention is measured with and without relative positions, restricted
self-attention only with them. Times are medians of runs in which the layers take turns. Peak memory
is measured in a new process for each layer and length. Prints a table, and writes layer_costs.csv
and, if matplotlib is installed, layer_costs.png.
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
from benchmarks.common.flag_checks import check_no_arguments, positive_integers
from benchmarks.common.pyplot import import_pyplot
from benchmarks.common.tables import print_cells, print_header, write_csv
from t2t_relpos import RelativeMultiHeadAttention

FLAGS = flags.FLAGS
flags.DEFINE_list("lengths", ["512", "1024", "2048", "4096"], "Sequence lengths n.")
flags.DEFINE_integer("width", 256, "Width d of the layers.", lower_bound=8)
flags.DEFINE_integer("heads", 4, "Attention heads.", lower_bound=1)
flags.DEFINE_integer("max_relative_position", 16, "Clipping distance K.", lower_bound=0)
flags.DEFINE_integer("window", 64, "Window r of the restricted layer.", lower_bound=1)
flags.DEFINE_integer("kernel", 3, "Width k of the convolution.", lower_bound=1)
flags.DEFINE_integer("runs", 7, "Measurements of each layer.", lower_bound=1)
flags.DEFINE_integer("threads", 1, "Threads per op.", lower_bound=1)
flags.DEFINE_string("output_dir", "runs/layer_costs", "Folder for the table and the plot.")
flags.DEFINE_string("memory_of", None, "Print only the peak memory in MB of LAYER,LENGTH.")

# Layer -> complexity per layer, sequential operations, maximum path length (Vaswani et al. 2017).
COMPLEXITIES = {
    "self-attention": ("O(n²·d)", "O(1)", "O(1)"),
    "relative": ("O(n²·d)", "O(1)", "O(1)"),
    "restricted relative": ("O(r·n·d)", "O(1)", "O(n/r)"),
    "recurrent": ("O(n·d²)", "O(n)", "O(n)"),
    "convolutional": ("O(k·n·d²)", "O(1)", "O(log_k n)"),
}


def make_layer(name: str):
    """Returns a function from inputs to outputs, and one that returns the weights."""
    heads = {"num_heads": FLAGS.heads, "key_dim": FLAGS.width // FLAGS.heads}
    relative = heads | {"max_relative_position": FLAGS.max_relative_position}
    if name == "recurrent":
        layer = keras.layers.LSTM(FLAGS.width, return_sequences=True)
    elif name == "convolutional":
        layer = keras.layers.Conv1D(FLAGS.width, FLAGS.kernel, padding="same")
    elif name == "self-attention":
        layer = keras.layers.MultiHeadAttention(**heads)
    elif name == "relative":
        layer = RelativeMultiHeadAttention(**relative)
    else:
        layer = RelativeMultiHeadAttention(sliding_window=FLAGS.window, **relative)
    is_attention = name not in ("recurrent", "convolutional")
    arguments = 2 if is_attention else 1

    def call(x):
        return layer(*[x] * arguments, training=True)

    return call, lambda: [weight.value for weight in layer.trainable_weights]


def make_step(name: str, length: int):
    """Returns a function without arguments that runs a training step and waits for its result."""
    call, get_weights = make_layer(name)
    x = tf.constant(np.random.default_rng(0).normal(size=(1, length, FLAGS.width)), tf.float32)
    call(x[:, :8])
    weights = get_weights()

    @tf.function(jit_compile=False)
    def step(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(call(inputs) ** 2)
        return tape.gradient(loss, [inputs, *weights])

    return lambda: step(x)[0].numpy()


def measure_times(length: int) -> dict[str, float]:
    """Returns the median seconds of a step of every layer."""
    steps = {name: make_step(name, length) for name in COMPLEXITIES}
    times = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(FLAGS.runs):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def print_memory(name: str, length: int):
    """Prints the peak memory of two steps, minus the memory resident before them, in MB."""
    # The first step of a process allocates memory that does not depend on the length.
    make_step(name, 8)()
    print(f"{memory.peak_increase(make_step(name, length)):.1f}")


def measure_memory(name: str, length: int) -> float:
    """Returns the peak memory of a layer in a new process, in MB."""
    settings = ("width", "heads", "max_relative_position", "window", "kernel", "threads")
    return memory.measure_in_new_process(
        "benchmarks.layer_costs", (name, length), {flag: FLAGS[flag].value for flag in settings}
    )


def measure(length: int) -> list[dict]:
    """Returns a row for every layer, and prints it to stderr as progress."""
    rows = []
    for name, seconds in measure_times(length).items():
        row = {"layer": name, "length": length, "milliseconds": 1000 * seconds}
        row["megabytes"] = measure_memory(name, length)
        text = f"n = {length}: {name} {row['milliseconds']:.1f} ms, {row['megabytes']:.0f} MB"
        print(text, file=sys.stderr, flush=True)
        rows.append(row)
    return rows


def print_table(rows: list[dict]):
    lengths = sorted({row["length"] for row in rows})
    print_header(
        ["layer", "per layer", "sequential", "path", *(f"n = {length}" for length in lengths)]
    )
    for name, complexity in COMPLEXITIES.items():
        cells = [
            f"{row['milliseconds']:.1f} ms, {row['megabytes']:.0f} MB"
            for row in sorted(rows, key=lambda row: row["length"])
            if row["layer"] == name
        ]
        print_cells([name, *complexity, *cells])


def plot(pyplot, rows: list[dict], path: Path):
    """Draws time and memory by length."""
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4))
    labels = {"milliseconds": "ms per training step", "megabytes": "peak memory in MB"}
    for axis, (key, label) in zip(axes, labels.items()):
        for name, (complexity, *_) in COMPLEXITIES.items():
            points = [(row["length"], row[key]) for row in rows if row["layer"] == name]
            axis.plot(*zip(*points), marker="o", label=f"{name} {complexity}")
        axis.set(xscale="log", yscale="log", xlabel="length n", ylabel=label)
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main(argv):
    check_no_arguments(argv)
    # Every layer and length builds a new graph; silence TensorFlow's warning about it.
    tf.get_logger().setLevel("ERROR")
    tf.config.threading.set_intra_op_parallelism_threads(FLAGS.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    if FLAGS.memory_of:
        name, length = FLAGS.memory_of.rsplit(",", 1)
        if name not in COMPLEXITIES:
            raise app.UsageError(
                f"Expected LAYER of --memory_of among {', '.join(COMPLEXITIES)}. Received: {name!r}"
            )
        print_memory(name, int(length))
        return
    rows = [row for length in positive_integers("lengths") for row in measure(length)]
    write_csv(Path(FLAGS.output_dir) / "layer_costs.csv", rows[0], rows)
    print_table(rows)
    if (pyplot := import_pyplot()) is not None:
        plot(pyplot, rows, Path(FLAGS.output_dir) / "layer_costs.png")


if __name__ == "__main__":
    app.run(main)
