"""How fast models train: a whole step of this project's beside OpenNMT-tf's and tensor2tensor's, on the same batches of ids.

    python benchmarks/training.py --train_source=train.en.gz --train_target=train.de.gz --opennmt_python=ONMT/bin/python
    python benchmarks/training.py --preset=shaw_base --vocab_size=32000 --batch_tokens=2048 --t2t_python=T2T/bin/python ...

Every peer is a process of its own (training_worker.py) with a new model; all live at the same time and train in turns, a block of
steps each, in an order that changes from run to run. A step is forward, backward and update, with dropout and label smoothing, on
batches that lie in memory as ids. Each run has other batches; the first run, in which graphs are traced, does not count.

Prints source and target tokens a second, padding not counted: the median over runs with its 95% interval; the ratio of each
peer's time to ours in the same run; and as a share of the matrix-multiply rate how much of the step's time its products of tokens and
weights would take in float32 (multiply_rate.py says what is counted). That rate is measured in turn with the peers, by a process with
their threads, and is the row "products alone"; its C library keeps the memory that it has, so that no page is made anew. With bfloat16
a share may be above 1.

"ours absolute" has sinusoidal positions, without tables. OpenNMT-tf and tensor2tensor have one table for all heads of a layer, whatever
the preset. --opennmt_python is the Python of an environment with OpenNMT-tf 2.32, --t2t_python that of one with tensor2tensor
1.15.7 (tests/reference/README.md says how to make it); without them these peers are left out.
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from absl import app, flags

from benchmarks.common.bootstrap import median_and_interval
from benchmarks.common.flag_checks import check_values, positive_integers
from benchmarks.common.tables import print_cells, print_header, write_csv
from benchmarks.common.worker_processes import available, in_turns, start_workers
from benchmarks.training.batches import count_tokens, make_batches, write_batches
from benchmarks.training.matmul_rate import operations
from t2t_relpos.models import PRESETS, TransformerConfig

FLAGS = flags.FLAGS
PRODUCTS = "products alone"
# The rate is the processor's: without these glibc gives large results back, and gets them anew page by page.
KEEP_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(10**11),
    "MALLOC_ARENA_MAX": "1",
}
PEERS = {
    "ours": {"kind": "ours", "precision": "float32"},
    "ours bfloat16": {"kind": "ours", "precision": "bfloat16"},
    "ours absolute": {
        "kind": "ours",
        "precision": "float32",
        "changes": {"position": "sinusoidal"},
    },
    "opennmt": {"kind": "opennmt"},
    "t2t": {"kind": "t2t"},
}
# Those that OpenNMT-tf and tensor2tensor have too.
RELATIVE = sorted(name for name, settings in PRESETS.items() if settings["position"] == "relative")
flags.DEFINE_enum("preset", "tiny", RELATIVE, "The architecture.")
flags.DEFINE_integer(
    "vocab_size",
    8000,
    "Pieces of the vocabulary, which is learned from the training text.",
    lower_bound=4,
)
flags.DEFINE_string(
    "train_source", "", "Source sentences, one a line; may be .gz. Default: the embedded corpus."
)
flags.DEFINE_string("train_target", "", "Their translations.")
flags.DEFINE_integer(
    "batch_tokens", 4096, "Tokens of the longer side in a batch, padding included.", lower_bound=1
)
flags.DEFINE_integer("max_length", 256, "Longest sentence in ids.", lower_bound=2)
flags.DEFINE_integer("steps", 5, "Steps of a block.", lower_bound=1)
flags.DEFINE_integer("runs", 15, "Blocks of every peer, in turns.", lower_bound=1)
flags.DEFINE_list("threads", ["1"], "Threads that one operation may use.")
flags.DEFINE_list("peers", list(PEERS), "Who is measured; ours always is.")
flags.DEFINE_float("label_smoothing", 0.1, "Of the loss.", lower_bound=0.0, upper_bound=0.99)
flags.DEFINE_multi_string(
    "env", [], "NAME=VALUE: a variable of all peers' environment; may be given again."
)
flags.DEFINE_string("opennmt_python", None, "Python of an environment with OpenNMT-tf.")
flags.DEFINE_string("t2t_python", None, "Python of an environment with tensor2tensor.")
flags.DEFINE_string("csv", None, "Where to write the table.")

COLUMNS = (
    *("threads", "peer", "tokens/s", "low", "high", "time over ours", "ratio low", "ratio high"),
    *("share", "share low", "share high", "GFLOP/s", "megabytes"),
)


def check_flags():
    """Refuses what contradicts itself."""
    if bool(FLAGS.train_source) != bool(FLAGS.train_target):
        missing = "train_target" if FLAGS.train_source else "train_source"
        raise app.UsageError(
            f"Expected both --train_source and --train_target, or neither. Received: no --{missing}."
        )
    for pair in FLAGS.env:
        if not pair.partition("=")[0] or "=" not in pair:
            raise app.UsageError(f"Expected --env=NAME=VALUE. Received: --env={pair}.")
    check_values("peers", PEERS)
    positive_integers("threads")


def chosen_peers():
    """Names of the peers, ours first; says which are left out."""
    return available(
        ["ours", *(name for name in PEERS if name in FLAGS.peers and name != "ours")], pythons()
    )


def pythons():
    """Of peers with an environment of their own."""
    return {"opennmt": FLAGS.opennmt_python, "t2t": FLAGS.t2t_python}


def settings_of(names, config, batches_file, threads):
    """What each worker is told, by name; the last one multiplies."""
    variables = dict(pair.split("=", 1) for pair in FLAGS.env)
    common = {
        "batches": batches_file,
        "threads": threads,
        "preset": FLAGS.preset,
        "label_smoothing": FLAGS.label_smoothing,
    }
    common["variables"] = variables
    settings = {}
    for name in names:
        peer = dict(PEERS[name])
        settings[name] = common | {"config": config.to_dict() | peer.pop("changes", {})} | peer
    settings[PRODUCTS] = common | {
        "config": config.to_dict(),
        "kind": "products",
        "variables": variables | KEEP_MEMORY,
    }
    return settings


def measure(peers):
    """The answers of every peer to every block of batches."""
    answers = {name: [] for name in peers}
    for run, name in in_turns(peers, FLAGS.runs + 1):
        answers[name].append(peers[name].ask([run * FLAGS.steps, (run + 1) * FLAGS.steps]))
    return {name: of_runs[1:] for name, of_runs in answers.items()}


def rows_of(threads, answers, tokens, work):
    """A row of the table for every peer.

    Args:
        threads: that an operation may use.
        answers: of every peer to every run.
        tokens: of every run, both sides.
        work: operations of every run's products.
    """
    seconds = {
        name: np.array([answer["seconds"] for answer in of_runs])
        for name, of_runs in answers.items()
    }
    seconds[PRODUCTS] = work / [answer["operations_per_second"] for answer in answers[PRODUCTS]]
    for name, times in seconds.items():
        row = {"threads": threads, "peer": name, "GFLOP/s": np.median(work / times) / 1e9}
        values = {
            "tokens/s": tokens / times,
            "time over ours": times / seconds["ours"],
            "share": seconds[PRODUCTS] / times,
        }
        for (column, of_runs), prefix in zip(values.items(), ("", "ratio ", "share ")):
            row[column], row[f"{prefix}low"], row[f"{prefix}high"] = median_and_interval(of_runs)
        yield row | {"megabytes": max(answer["megabytes"] for answer in answers[name])}


def print_row(row):
    """Prints a line of the table."""
    cells = [
        str(row["threads"]),
        row["peer"],
        f"{row['tokens/s']:.0f} ({row['low']:.0f} – {row['high']:.0f})",
    ]
    cells.append(f"{row['time over ours']:.2f} ({row['ratio low']:.2f} – {row['ratio high']:.2f})")
    cells.append(f"{row['share']:.2f} ({row['share low']:.2f} – {row['share high']:.2f})")
    print_cells([*cells, f"{row['GFLOP/s']:.0f}", f"{row['megabytes']:.0f}"])


def run_all(config, batches, batches_file):
    """The rows of all numbers of threads, each printed."""
    blocks = [batches[i : i + FLAGS.steps] for i in range(FLAGS.steps, len(batches), FLAGS.steps)]
    counts = [count_tokens(block) for block in blocks]
    tokens = np.array([sum(count.values()) for count in counts])
    work = np.array([operations(config.to_dict(), count) for count in counts])
    slots = sum(side.size for block in blocks for batch in block for side in batch)
    mean = tokens.mean() / FLAGS.steps
    filled = 100 * tokens.sum() / slots
    print(
        f"{FLAGS.preset}, {FLAGS.runs} runs of {FLAGS.steps} steps, {mean:.0f} tokens a step in {filled:.0f}% of the slots\n"
    )
    header = *COLUMNS[:3], "time over ours", "share", "GFLOP/s", "megabytes"
    print_header(header)
    names, rows = chosen_peers(), []
    for threads in positive_integers("threads"):
        settings = settings_of(names, config, batches_file, threads)
        with start_workers("benchmarks.training.worker", settings, pythons()) as peers:
            for row in rows_of(threads, measure(peers), tokens, work):
                rows.append(row)
                print_row(row)
    return rows


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1]!r}.")
    check_flags()
    config = TransformerConfig.from_preset(FLAGS.preset, vocab_size=FLAGS.vocab_size)
    count = (FLAGS.runs + 1) * FLAGS.steps
    try:
        batches = make_batches(
            FLAGS.train_source,
            FLAGS.train_target,
            FLAGS.vocab_size,
            FLAGS.batch_tokens,
            FLAGS.max_length,
            count,
        )
    except ValueError as error:
        raise app.UsageError(str(error)) from error
    with tempfile.TemporaryDirectory() as folder:
        rows = run_all(config, batches, write_batches(Path(folder) / "batches.npz", batches))
    if FLAGS.csv:
        write_csv(FLAGS.csv, COLUMNS, rows)


if __name__ == "__main__":
    app.run(main)
