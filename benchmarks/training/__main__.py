"""Compares the training speed of this project, OpenNMT-tf, tensor2tensor and PyTorch.

    python -m benchmarks.training --train_source=train.en.gz --train_target=train.de.gz \
        --opennmt_python=ONMT/bin/python
    python -m benchmarks.training --preset=shaw_base --vocab_size=32000 --batch_tokens=2048 \
        --tensor2tensor_python=T2T/bin/python

Systems:
    trainer              this project
    trainer bfloat16     the same in mixed precision
    trainer sinusoidal   the same with sinusoidal instead of relative positions
    opennmt              OpenNMT-tf 2.32 in the environment of --opennmt_python
    tensor2tensor        tensor2tensor 1.15.7 in the environment of --tensor2tensor_python, which
                         tests/reference/README.md describes
    torch                torch.nn.Transformer, pre-norm, with sinusoidal positions and fused Adam

All systems train a new model on the same batches of ids in memory. A step is forward, backward and
update, with dropout and label smoothing. Each system has a worker process. The workers take turns,
--steps steps each, and every run has new batches. The first run traces graphs and is not counted.
In OpenNMT-tf and tensor2tensor, all heads of a layer share one table, regardless of the preset.

Columns, medians over runs with bootstrapped 95 % intervals:
    tokens/s         source and target tokens per second, without padding
    time / trainer   time of a step, divided by that of `trainer` in the same run
    MB               peak memory
"""

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from absl import app, flags

from benchmarks.flag_checks import check_no_arguments, check_values, positive_integers
from benchmarks.tables import (
    format_interval,
    median_and_interval,
    print_cells,
    print_header,
    write_csv,
)
from benchmarks.training.batches import count_tokens, make_batches, write_batches
from benchmarks.workers import available, in_turns, start_workers
from t2t_relpos.models import PRESETS, TransformerConfig

FLAGS = flags.FLAGS
SYSTEMS = {
    "trainer": {"kind": "trainer", "precision": "float32"},
    "trainer bfloat16": {"kind": "trainer", "precision": "bfloat16"},
    "trainer sinusoidal": {"kind": "trainer", "precision": "float32", "position": "sinusoidal"},
    "opennmt": {"kind": "opennmt"},
    "tensor2tensor": {"kind": "tensor2tensor"},
    "torch": {"kind": "torch"},
}
# The presets that OpenNMT-tf and tensor2tensor support too.
RELATIVE = sorted(name for name, settings in PRESETS.items() if settings["position"] == "relative")
flags.DEFINE_enum("preset", "tiny", RELATIVE, "Architecture.")
flags.DEFINE_integer(
    "vocab_size",
    8000,
    "Size of the SentencePiece vocabulary, which is trained on the training text.",
    lower_bound=4,
)
flags.DEFINE_string(
    "train_source",
    "",
    "Source sentences, one per line; may be .gz. Default: the synthetic corpus.",
)
flags.DEFINE_string("train_target", "", "Translations of --train_source.")
flags.DEFINE_integer(
    "batch_tokens",
    4096,
    "Tokens per batch on the longer side, including padding.",
    lower_bound=1,
)
flags.DEFINE_integer("max_length", 256, "Maximum sentence length in tokens.", lower_bound=2)
flags.DEFINE_integer("steps", 5, "Steps in a turn.", lower_bound=1)
flags.DEFINE_integer("runs", 15, "Measurements of each system.", lower_bound=1)
flags.DEFINE_list("threads", ["1"], "Threads per op.")
flags.DEFINE_list("systems", list(SYSTEMS), "Systems to measure. `trainer` is always included.")
flags.DEFINE_float("label_smoothing", 0.1, "Label smoothing.", lower_bound=0.0, upper_bound=0.99)
flags.DEFINE_string("opennmt_python", None, "Python of an environment with OpenNMT-tf.")
flags.DEFINE_string("tensor2tensor_python", None, "Python of an environment with tensor2tensor.")
flags.DEFINE_string(
    "torch_python",
    sys.executable if importlib.util.find_spec("torch") else None,
    "Python of an environment with PyTorch. Default: the running one, if it has PyTorch.",
)
flags.DEFINE_string("csv", None, "CSV file for the table.")

VALUES = ("tokens/s", "time / trainer")
COLUMNS = ("threads", "system", "MB")
COLUMNS += tuple(f"{value}{end}" for value in VALUES for end in ("", " low", " high"))


def batches_from_flags() -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the batches of all runs.

    Raises:
        app.UsageError: if only one of the two text files is given, or if `make_batches` raises a
            ValueError.
    """
    texts = FLAGS.train_source, FLAGS.train_target
    if bool(texts[0]) != bool(texts[1]):
        missing = "train_target" if texts[0] else "train_source"
        raise app.UsageError(
            f"Pass both --train_source and --train_target, or neither. Missing: --{missing}."
        )
    count = (FLAGS.runs + 1) * FLAGS.steps
    try:
        return make_batches(texts, FLAGS.vocab_size, FLAGS.batch_tokens, FLAGS.max_length, count)
    except ValueError as error:
        raise app.UsageError(str(error)) from error


def pythons():
    return {name: FLAGS[f"{name}_python"].value for name in ("opennmt", "tensor2tensor", "torch")}


def chosen_systems() -> list[str]:
    """Returns the systems of the flags that can run, `trainer` first."""
    names = [name for name in SYSTEMS if name == "trainer" or name in FLAGS.systems]
    return available(names, pythons())


def worker_settings(names, config, batches_file, threads) -> dict[str, dict]:
    """Returns the settings of every worker."""
    common = {
        "batches": batches_file,
        "threads": threads,
        "preset": FLAGS.preset,
        "label_smoothing": FLAGS.label_smoothing,
        "max_length": FLAGS.max_length,
    }
    return {
        name: common
        | SYSTEMS[name]
        | {"config": config.to_dict() | {k: v for k, v in SYSTEMS[name].items() if k == "position"}}
        for name in names
    }


def measure(workers) -> dict[str, list[dict]]:
    """Returns the answers of every worker to every run but the first."""
    answers = {name: [] for name in workers}
    for run, name in in_turns(workers, FLAGS.runs + 1):
        answers[name].append(workers[name].ask([run * FLAGS.steps, (run + 1) * FLAGS.steps]))
    return {name: answers_by_run[1:] for name, answers_by_run in answers.items()}


def make_rows(threads: int, answers: dict, tokens):
    """Yields a row of the table for every system.

    Args:
        threads: threads per op.
        answers: see `measure`.
        tokens: array of the tokens of each run.
    """
    seconds = {name: np.array([a["seconds"] for a in each]) for name, each in answers.items()}
    for name, times in seconds.items():
        row = {"threads": threads, "system": name}
        row["MB"] = max(answer["megabytes"] for answer in answers[name])
        ratios = tokens / times, times / seconds["trainer"]
        row |= dict(zip(COLUMNS[3:], (x for ratio in ratios for x in median_and_interval(ratio))))
        yield row


def print_row(row):
    intervals = [
        format_interval(*(row[f"{value}{end}"] for end in ("", " low", " high")), digits=digits)
        for value, digits in zip(VALUES, (0, 2))
    ]
    print_cells([str(row["threads"]), row["system"], *intervals, f"{row['MB']:.0f}"])


def run_all(config, batches, batches_file) -> list[dict]:
    """Prints and returns the rows for every number of threads."""
    runs = [batches[i : i + FLAGS.steps] for i in range(FLAGS.steps, len(batches), FLAGS.steps)]
    tokens = np.array([count_tokens(run) for run in runs])
    positions = sum(side.size for run in runs for batch in run for side in batch)
    print(
        f"{FLAGS.preset}, {FLAGS.runs} runs of {FLAGS.steps} steps, "
        f"{tokens.mean() / FLAGS.steps:.0f} tokens/step, "
        f"{1 - tokens.sum() / positions:.0%} padding\n"
    )
    print_header((*COLUMNS[:2], *VALUES, "MB"))
    names, rows = chosen_systems(), []
    for threads in positive_integers("threads"):
        settings = worker_settings(names, config, batches_file, threads)
        with start_workers("benchmarks.training.worker", settings, pythons()) as workers:
            for row in make_rows(threads, measure(workers), tokens):
                rows.append(row)
                print_row(row)
    return rows


def main(argv):
    check_no_arguments(argv)
    check_values("systems", SYSTEMS)
    positive_integers("threads")
    config = TransformerConfig.from_preset(FLAGS.preset, vocab_size=FLAGS.vocab_size)
    batches = batches_from_flags()
    with tempfile.TemporaryDirectory() as folder:
        rows = run_all(config, batches, write_batches(Path(folder) / "batches.npz", batches))
    if FLAGS.csv:
        write_csv(FLAGS.csv, COLUMNS, rows)


if __name__ == "__main__":
    app.run(main)
