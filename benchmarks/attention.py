"""What relative positions cost: this library and tensor2tensor's algorithm against plain attention, as ratios of time and memory.

    python benchmarks/attention.py --output_dir=runs/attention
    python benchmarks/attention.py --lengths=512,2048 --parts=core --passes=both --reaches=2,16,64 --padding --dropout=0.1

All sides run in one process in turns, on one thread. `core` is the attention of given queries, keys and values; `layer` a whole
encoder layer of about 2,048 tokens. Plain is the faster of keras.layers.MultiHeadAttention (in `layer`) and this library with both
tables off. "Products" are the six matrix products of the core alone, forward and backward, which plain attention can't do without: the
processor's limit for it. Prints medians of the ratio to plain with a bootstrapped 95% interval and peak memory, each of the latter measured
in a process of its own; writes attention.csv and, with the extra [plots], attention.png.
"""

import functools
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import memory
import numpy as np
import plots
import tensorflow as tf
from absl import app, flags
from bootstrap import median_and_interval
from tables import print_cells, print_header, write_csv

from t2t_relpos import RelativeMultiHeadAttention
from t2t_relpos.attention import attend, causal_mask, key_padding_mask
from t2t_relpos.attention.dropout import AttentionDropout
from t2t_relpos.attention.reference import dot_product_attention_relative

FLAGS = flags.FLAGS
flags.DEFINE_list("lengths", "32,64,128,256,512,1024,2048,4096".split(","), "Lengths n.")
flags.DEFINE_list("parts", ["core", "layer"], "What is measured: core, layer.")
flags.DEFINE_list("directions", ["bidirectional", "causal"], "bidirectional, causal.")
flags.DEFINE_list(
    "passes", ["forward", "both"], "forward (as without training), both (forward and backward)."
)
flags.DEFINE_list("reaches", ["16"], "K, max_relative_position.")
flags.DEFINE_bool("padding", False, "Hide the last keys of every other sequence.")
flags.DEFINE_bool(
    "flash_attention", False, "Ask the library for memory linear in length, whatever the length."
)
flags.DEFINE_float("dropout", 0.0, "Of attention weights.", lower_bound=0.0, upper_bound=0.9)
flags.DEFINE_integer("runs", 30, "Alternating runs.", lower_bound=1)
flags.DEFINE_integer("threads", 1, "Threads that one operation may use.", lower_bound=1)
flags.DEFINE_integer(
    "longest_t2t",
    1024,
    "tensor2tensor's algorithm is left out above, where its memory is too much.",
)
flags.DEFINE_bool("memory", True, "Measure peak memory too.")
flags.DEFINE_string("output_dir", "runs/attention", "Where the table and the plot are written.")
flags.DEFINE_string(
    "memory_of",
    None,
    "Internal: measure the memory of SIDE,PART,DIRECTION,PASS,K,LENGTH and print it.",
)

HEADS, DEPTH, WIDTH, INNER, TOKENS = 8, 64, 512, 2048, 2048
COMPARED = ("this library", "t2t", "products")
SIDES = ("plain", "keras", *COMPARED)
# Sides that a part does not have.
WITHOUT = {"core": ["keras"], "layer": ["products"]}


def arrays(length, reach):
    """Queries, keys, values `[B, N, n, H]` and two tables, or for layers inputs `[B, n, D]`."""
    rng = np.random.default_rng(0)
    batch = max(1, TOKENS // length)

    def draw(*shape):
        return tf.constant(rng.normal(size=shape), tf.float32)

    qkv = [draw(batch, HEADS, length, DEPTH) * DEPTH**-0.25 for _ in range(3)]
    return qkv, [draw(2 * reach + 1, DEPTH) * 0.1 for _ in range(2)], draw(batch, length, WIDTH)


def keys_that_exist(batch, length):
    lengths = np.where(np.arange(batch) % 2 == 0, length, max(1, 3 * length // 4))
    return tf.constant(np.arange(length) < lengths[:, None])


def make_core(side, length, causal, reach, training):
    """The attention as a function, and the tensors that it takes."""
    qkv, tables, _ = arrays(length, reach)
    masks = {"key_mask": keys_that_exist(qkv[0].shape[0], length)} if FLAGS.padding else {}
    rate = FLAGS.dropout if training else 0.0
    dropout = AttentionDropout(rate, keras.random.SeedGenerator(1)) if rate else None
    # As a layer says.
    recompute = (
        True if FLAGS.flash_attention and side == "this library" else False if training else None
    )

    def attend_as_t2t(*tensors):
        bias = None
        if causal or masks:
            allowed = causal_mask(length, length) if causal else True
            allowed = (
                tf.logical_and(allowed, key_padding_mask(masks["key_mask"])) if masks else allowed
            )
            bias = tf.where(allowed, 0.0, -1e9)
        *qkv, key_table, value_table = tensors
        return dot_product_attention_relative(*qkv, bias, key_table, value_table, reach, rate)

    def attend_here(*tensors):
        return attend(
            *tensors,
            causal=causal,
            dropout=dropout,
            return_weights=False,
            recompute=recompute,
            **masks,
        )[0]

    function = {"t2t": attend_as_t2t, "products": products}.get(side, attend_here)
    return function, qkv if side in ("plain", "products") else [*qkv, *tables]


def products(query, key, value):
    """What of plain attention are matrix products; their gradients are four more."""
    return tf.matmul(tf.matmul(query, key, transpose_b=True), value)


class T2TAttention(RelativeMultiHeadAttention):
    """The layer with tensor2tensor's algorithm in it."""

    def attend(self, query, key, value, *, mask, key_mask, causal, dropout, **_):
        length = query.shape[2]
        bias = None
        for allowed in (mask, causal_mask(length, length) if causal else None):
            if allowed is not None:
                bias = tf.where(allowed, 0.0, -1e9) + (0.0 if bias is None else bias)
        tables = [tf.convert_to_tensor(t.table) for t in (self.key_embedding, self.value_embedding)]
        rate = dropout.rate if dropout else 0.0
        return dot_product_attention_relative(
            query, key, value, bias, *tables, self.max_relative_position, rate
        ), None


def make_layer(side, length, causal, reach, training):
    """An encoder layer as a function, and the tensors that its gradient is of: inputs and weights."""
    _, _, inputs = arrays(length, reach)
    settings = {"num_heads": HEADS, "key_dim": DEPTH, "dropout": FLAGS.dropout}
    attention = {
        "plain": lambda: RelativeMultiHeadAttention(
            max_relative_position=None, use_key_table=False, use_value_table=False, **settings
        ),
        "keras": lambda: keras.layers.MultiHeadAttention(**settings),
        "this library": lambda: RelativeMultiHeadAttention(
            max_relative_position=reach, flash_attention=FLAGS.flash_attention or None, **settings
        ),
        "t2t": lambda: T2TAttention(max_relative_position=reach, **settings),
    }[side]()
    norms = [keras.layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]
    inner, outer = keras.layers.Dense(INNER, activation="relu"), keras.layers.Dense(WIDTH)
    mask = keys_that_exist(inputs.shape[0], length)[:, None, :] if FLAGS.padding else None

    def call(x, *_):
        y = norms[0](x)
        x = x + attention(y, y, attention_mask=mask, use_causal_mask=causal, training=training)
        return x + outer(inner(norms[1](x)))

    call(inputs[:, :8] if mask is None else inputs)
    weights = [
        w.value for layer in (attention, *norms, inner, outer) for w in layer.trainable_weights
    ]
    return call, [inputs, *weights]


def make_step(side, part, direction, passes, reach, length):
    """One step: a function without arguments."""
    function, tensors = (make_core if part == "core" else make_layer)(
        side, length, direction == "causal", reach, training=passes == "both"
    )

    @tf.function(jit_compile=False)
    def step():
        if passes == "forward":
            return [tf.reduce_sum(function(*tensors))]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            loss = tf.reduce_sum(tf.square(function(*tensors)))
        # All of them: what is not asked for, TensorFlow does not compute.
        return [tf.convert_to_tensor(g) for g in tape.gradient(loss, tensors)]

    return lambda: step()[0].numpy()


def sides_of(part, length):
    return [
        side
        for side in SIDES
        if side not in WITHOUT[part] and not (side == "t2t" and length > FLAGS.longest_t2t)
    ]


def measure(part, direction, passes, reach, length):
    """A row for every side."""
    case = part, direction, passes, reach, length
    steps = {side: make_step(side, *case) for side in sides_of(part, length)}
    for step in steps.values():
        step(), step()
    times = {side: [] for side in steps}
    for _ in range(FLAGS.runs):
        for side, step in steps.items():
            start = time.perf_counter()
            step()
            times[side].append(time.perf_counter() - start)
    plain = min(
        (side for side in ("plain", "keras") if side in times),
        key=lambda side: np.median(times[side]),
    )
    rows = []
    for side in steps:
        ratios = np.divide(times[side], times[plain])
        median, low, high = median_and_interval(ratios)
        names = "part", "direction", "pass", "K", "n"
        row = dict(zip(names, case)) | {"side": side, "milliseconds": 1000 * np.median(times[side])}
        row |= {"ratio": median, "low": low, "high": high, "plain": plain}
        row["megabytes"] = (
            measure_memory(side, *case)
            if FLAGS.memory and passes == "both" and side != "products"
            else ""
        )
        rows.append(row)
    return rows


def print_memory(side, *case):
    """Prints by how much the peak of two steps is above what the process held before."""
    make_step(side, *case[:-1], 8)()
    step = make_step(side, *case)
    print(f"{memory.rise(step):.1f}")


def measure_memory(*case):
    """Peak memory of a side in a process of its own, in MB above the start."""
    return memory.rise_elsewhere(
        __file__,
        case,
        {name: FLAGS[name].value for name in ("dropout", "flash_attention", "padding", "threads")},
    )


def print_rows(rows):
    """Prints a line of the table."""
    cells = {row["side"]: row for row in rows}
    plain = cells[rows[0]["plain"]]
    case = [str(rows[0][name]) for name in ("part", "direction", "pass", "K", "n")]
    line = [*case, f"{plain['milliseconds']:.1f}"]
    for side in COMPARED:
        row = cells.get(side)
        line.append(f"{row['ratio']:.2f} ({row['low']:.2f} – {row['high']:.2f})" if row else "")
    megabytes = (
        cells[side]["megabytes"] if side in cells else ""
        for side in (rows[0]["plain"], "this library", "t2t")
    )
    line += [f"{x:.0f}" if x != "" else "" for x in megabytes]
    print_cells(line)


def plot(pyplot, rows, path):
    """Draws ratios against length."""
    figure, axis = pyplot.subplots(figsize=(8, 5))
    key = functools.partial(map, {"forward": "forward", "both": "forward and backward"}.get)
    for case in sorted(
        {
            (r["side"], r["part"], r["direction"], r["pass"], r["K"])
            for r in rows
            if r["side"] in COMPARED
        }
    ):
        points = [
            r for r in rows if (r["side"], r["part"], r["direction"], r["pass"], r["K"]) == case
        ]
        label = ", ".join([*case[:3], *key([case[3]]), f"K = {case[4]}"])
        axis.plot([r["n"] for r in points], [r["ratio"] for r in points], marker="o", label=label)
    axis.axhline(1, color="black", linewidth=1)
    axis.set(
        xscale="log", yscale="log", xlabel="length n", ylabel="time over that of plain attention"
    )
    for of_axis, ticks in (
        (axis.xaxis, sorted({r["n"] for r in rows})),
        (axis.yaxis, (0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8)),
    ):
        of_axis.set_ticks([], minor=True)
        of_axis.set_ticks(ticks, labels=map(str, ticks))
    ratios = [r["ratio"] for r in rows]
    axis.set_ylim(0.9 * min(ratios), 1.1 * max(ratios))
    axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1]!r}.")
    tf.get_logger().setLevel("ERROR")  # every case is a graph of its own, on purpose
    tf.config.threading.set_intra_op_parallelism_threads(FLAGS.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    if FLAGS.memory_of:
        *names, reach, length = FLAGS.memory_of.split(",")
        print_memory(*names, int(reach), int(length))
        return
    header = (
        "part",
        "direction",
        "pass",
        "K",
        "n",
        "plain ms",
        *COMPARED,
        "MB plain",
        "MB this library",
        "MB t2t",
    )
    print_header(header)
    rows = []
    for part in FLAGS.parts:
        for direction in FLAGS.directions:
            for passes in FLAGS.passes:
                for reach in map(int, FLAGS.reaches):
                    for length in map(int, FLAGS.lengths):
                        rows += (case := measure(part, direction, passes, reach, length))
                        print_rows(case)
    directory = Path(FLAGS.output_dir)
    directory.mkdir(parents=True, exist_ok=True)
    write_csv(directory / "attention.csv", rows[0], rows)
    if (pyplot := plots.pyplot()) is not None:
        plot(pyplot, rows, directory / "attention.png")


if __name__ == "__main__":
    app.run(main)
