"""Compares the training speed of this project, OpenNMT-tf and tensor2tensor.

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
    matmul               only the multiplications of tokens by weights, in float32

All systems train a new model on the same batches of ids in memory. A step is forward, backward and
update, with dropout and label smoothing. Each system has a worker process. The workers take turns,
--steps steps each, and every run has new batches. The first run traces graphs and is not counted.
In OpenNMT-tf and tensor2tensor, all heads of a layer share one table, regardless of the preset.

Columns, medians over runs with bootstrapped 95 % intervals:
    tokens/s         source and target tokens per second, without padding
    time / trainer   time of a step, divided by that of `trainer` in the same run
    matmul share     time of `matmul`, divided by that of a step; may exceed 1 in bfloat16
    GFLOP/s          FLOPs of `matmul`, divided by the time of a step
    MB               peak memory
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from absl import app, flags

from benchmarks.common.bootstrap import format_interval, median_and_interval
from benchmarks.common.flag_checks import check_no_arguments, check_values, positive_integers
from benchmarks.common.tables import print_cells, print_header, write_csv
from benchmarks.common.worker_processes import available, in_turns, start_workers
from benchmarks.training import batches as batches_module
from benchmarks.training.batches import count_tokens, write_batches
from benchmarks.training.matmul_rate import count_flops
from t2t_relpos.models import PRESETS, TransformerConfig

FLAGS = flags.FLAGS
SYSTEMS = {
    "trainer": {"kind": "trainer", "precision": "float32"},
    "trainer bfloat16": {"kind": "trainer", "precision": "bfloat16"},
    "trainer sinusoidal": {"kind": "trainer", "precision": "float32", "position": "sinusoidal"},
    "opennmt": {"kind": "opennmt"},
    "tensor2tensor": {"kind": "tensor2tensor"},
}
# glibc must not return the memory of large results to the system, or page faults slow matmul down.
MATMUL_VARIABLES = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(10**11),
    "MALLOC_ARENA_MAX": "1",
}
# The presets that OpenNMT-tf and tensor2tensor support too.
RELATIVE = sorted(name for name, settings in PRESETS.items() if settings["position"] == "relative")
flags.DEFINE_enum("preset", "tiny", RELATIVE, "Architecture.")
batches_module.define_flags()
flags.DEFINE_integer("steps", 5, "Steps in a turn.", lower_bound=1)
flags.DEFINE_integer("runs", 15, "Measurements of each system.", lower_bound=1)
flags.DEFINE_list("threads", ["1"], "Threads per op.")
flags.DEFINE_list("systems", list(SYSTEMS), "Systems to measure. `trainer` is always included.")
flags.DEFINE_float("label_smoothing", 0.1, "Label smoothing.", lower_bound=0.0, upper_bound=0.99)
flags.DEFINE_multi_string(
    "env", [], "NAME=VALUE, an environment variable of all workers. Repeat for more."
)
flags.DEFINE_string("opennmt_python", None, "Python of an environment with OpenNMT-tf.")
flags.DEFINE_string("tensor2tensor_python", None, "Python of an environment with tensor2tensor.")
flags.DEFINE_string("csv", None, "CSV file for the table.")

VALUES = ("tokens/s", "time / trainer", "matmul share")
COLUMNS = ("threads", "system", "GFLOP/s", "MB")
COLUMNS += tuple(f"{value}{end}" for value in VALUES for end in ("", " low", " high"))


def check_flags():
    """Raises `app.UsageError` if a flag has an invalid value."""
    for pair in FLAGS.env:
        if not pair.partition("=")[0] or "=" not in pair:
            raise app.UsageError(f"--env must be NAME=VALUE. Received: {pair!r}.")
    check_values("systems", SYSTEMS)
    positive_integers("threads")


def pythons():
    return {"opennmt": FLAGS.opennmt_python, "tensor2tensor": FLAGS.tensor2tensor_python}


def chosen_systems() -> list[str]:
    """Returns the systems of the flags that can run, `trainer` first."""
    names = [name for name in SYSTEMS if name == "trainer" or name in FLAGS.systems]
    return available(names, pythons())


def worker_settings(names, config, batches_file, threads) -> dict[str, dict]:
    """Returns the settings of every worker, including that of `matmul`."""
    common = {
        "batches": batches_file,
        "threads": threads,
        "preset": FLAGS.preset,
        "label_smoothing": FLAGS.label_smoothing,
        "config": config.to_dict(),
        "variables": dict(pair.split("=", 1) for pair in FLAGS.env),
    }
    settings = {name: common | SYSTEMS[name] for name in names}
    for each in settings.values():
        if "position" in each:
            each["config"] = each["config"] | {"position": each["position"]}
    variables = common["variables"] | MATMUL_VARIABLES
    return settings | {"matmul": common | {"kind": "matmul", "variables": variables}}


def measure(workers) -> dict[str, list[dict]]:
    """Returns the answers of every worker to every run but the first."""
    answers = {name: [] for name in workers}
    for run, name in in_turns(workers, FLAGS.runs + 1):
        answers[name].append(workers[name].ask([run * FLAGS.steps, (run + 1) * FLAGS.steps]))
    return {name: answers_by_run[1:] for name, answers_by_run in answers.items()}


def make_rows(threads: int, answers: dict, tokens, flops):
    """Yields a row of the table for every system.

    Args:
        threads: threads per op.
        answers: see `measure`.
        tokens: array of the tokens of each run.
        flops: array of the FLOPs of `matmul` for each run.
    """
    seconds = {
        name: np.array([answer["seconds"] for answer in answers_by_run])
        for name, answers_by_run in answers.items()
    }
    seconds["matmul"] = flops / [answer["flops_per_second"] for answer in answers["matmul"]]
    for name, times in seconds.items():
        ratios = tokens / times, times / seconds["trainer"], seconds["matmul"] / times
        row = {"threads": threads, "system": name, "GFLOP/s": np.median(flops / times) / 1e9}
        row["MB"] = max(answer["megabytes"] for answer in answers[name])
        row |= dict(zip(COLUMNS[4:], (x for ratio in ratios for x in median_and_interval(ratio))))
        yield row


def print_row(row):
    intervals = [
        format_interval(*(row[f"{value}{end}"] for end in ("", " low", " high")), digits=digits)
        for value, digits in zip(VALUES, (0, 2, 2))
    ]
    values = f"{row['GFLOP/s']:.0f}", f"{row['MB']:.0f}"
    print_cells([str(row["threads"]), row["system"], *intervals, *values])


def run_all(config, batches, batches_file) -> list[dict]:
    """Prints and returns the rows for every number of threads."""
    runs = [batches[i : i + FLAGS.steps] for i in range(FLAGS.steps, len(batches), FLAGS.steps)]
    counts = [count_tokens(run) for run in runs]
    tokens = np.array([sum(count.values()) for count in counts])
    flops = np.array([count_flops(config.to_dict(), count) for count in counts])
    positions = sum(side.size for run in runs for batch in run for side in batch)
    print(
        f"{FLAGS.preset}, {FLAGS.runs} runs of {FLAGS.steps} steps, "
        f"{tokens.mean() / FLAGS.steps:.0f} tokens/step, "
        f"{1 - tokens.sum() / positions:.0%} padding\n"
    )
    print_header((*COLUMNS[:2], *VALUES, *COLUMNS[2:4]))
    names, rows = chosen_systems(), []
    for threads in positive_integers("threads"):
        settings = worker_settings(names, config, batches_file, threads)
        with start_workers("benchmarks.training.worker", settings, pythons()) as workers:
            for row in make_rows(threads, measure(workers), tokens, flops):
                rows.append(row)
                print_row(row)
    return rows


def main(argv):
    check_no_arguments(argv)
    check_flags()
    config = TransformerConfig.from_preset(FLAGS.preset, vocab_size=FLAGS.vocab_size)
    batches = batches_module.batches_from_flags((FLAGS.runs + 1) * FLAGS.steps)
    with tempfile.TemporaryDirectory() as folder:
        rows = run_all(config, batches, write_batches(Path(folder) / "batches.npz", batches))
    if FLAGS.csv:
        write_csv(FLAGS.csv, COLUMNS, rows)


if __name__ == "__main__":
    app.run(main)
