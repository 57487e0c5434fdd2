"""Trains the models of the paper's tables and compares their BLEU with the published scores.

    python -m examples.paper_tables table1 --data=wmt14_translate/de-en --presets=shaw_base
    python -m examples.paper_tables table2 --data=FOLDER --dev=val --test=test_2016 --presets=tiny
    python -m examples.paper_tables lengths --data=FOLDER --presets=tiny --train_steps=1000

Experiments:
    table1      absolute positions, relative positions, and both
    table2      clipping distances
    table3      with and without the tables a^V and a^K
    lengths     relative and absolute positions, trained on short sentences, scored by length

Every variant is trained by `trainer.train` with the same settings, once per seed. Then the dev set
and the test sets are translated. Rerun the same command to resume. Variants that two tables have in
common are trained once.

--output_dir contains EXPERIMENT.md, which is updated after every trial, and the models in trials/.
"""

import os
import signal
import sys
from pathlib import Path

# Must be set before TensorFlow is imported; hides its start-up log.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from absl import app, flags

from examples.paper_tables import report
from examples.paper_tables.datasets import Dataset
from examples.paper_tables.scoring import score_trial
from examples.paper_tables.trial import Trial, TrialError
from examples.paper_tables.variants import EXPERIMENTS, make_variants
from trainer import atomic_files, errors, setting_flags
from trainer.config import RunConfig
from trainer.recipes import RECIPES
from trainer.streams import write_line

# Flags of `trainer.train` that apply to all variants.
TRAINING_FLAGS = (
    *("vocab_size", "train_steps", "batch_tokens", "device_tokens", "learning_rate"),
    *("warmup_steps", "label_smoothing", "dropout", "attention_dropout", "activation_dropout"),
    *("clip_norm", "precision", "checkpoint_every", "keep_checkpoints"),
)


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program, including those of `trainer.train` that it passes on."""

    def define(name, default, text, kind=flags.DEFINE_string, **bounds):
        kind(name, default, text, flag_values=values, **bounds)

    data = "Folder of files SPLIT.LANGUAGE[.gz], or a dataset of TensorFlow Datasets."
    define("data", None, data)
    define("data_dir", None, "Directory of TensorFlow Datasets. Default: ~/tensorflow_datasets.")
    define("direction", "en-de", "Source and target language.")
    define("train", "train", "Name of the training split in a folder.")
    define("dev", "dev", "Name of the dev split in a folder.")
    lists = flags.DEFINE_list
    define("test", ["test"], "Comma-separated names of the test splits.", lists)
    define("presets", ["shaw_base"], "Comma-separated presets to train.", lists)
    define("seeds", ["1"], "Comma-separated seeds; one model per seed.", lists)
    short = "For `lengths`: length of the longest training sentence in tokens."
    define("short", 16, short, flags.DEFINE_integer, lower_bound=4)
    define("output_dir", "runs/paper_tables", "Directory for tables and models.")
    setting_flags.define_flags(RunConfig, values, TRAINING_FLAGS)


def _check_flags(argv, values):
    if len(argv) != 2 or argv[1] not in EXPERIMENTS:
        raise ValueError(
            f"Expected one of {', '.join(EXPERIMENTS)}. Received: {' '.join(argv[1:]) or 'none'}."
        )
    if values.data is None:
        raise ValueError("--data must be a folder of text files or a TensorFlow Datasets name.")
    if not values.seeds or not all(seed.isdecimal() for seed in values.seeds):
        raise ValueError(f"--seeds must be integers >= 0, got {','.join(values.seeds) or 'none'}.")


def _make_trials(experiment, values):
    """Returns, for every variant, a list with one trial per seed."""
    dataset = Dataset(
        values.data, values.data_dir, values.direction, values.train, values.dev, tuple(values.test)
    )
    parent = Path(values.output_dir) / "trials"
    shared = {name: values[name].value for name in TRAINING_FLAGS if values[name].value is not None}

    def make_trial(variant, seed):
        train_steps = {"train_steps": RECIPES[variant.preset]["train_steps"]}
        return Trial(variant, int(seed), train_steps | shared, dataset, parent)

    variants = make_variants(experiment, values.presets, values.short)
    return [[make_trial(variant, seed) for seed in values.seeds] for variant in variants]


def _write_report(experiment, trials, values):
    """Writes and returns the table."""
    max_length = values.short if experiment == "lengths" else None
    results = [[score_trial(trial, max_length) for trial in seeds] for seeds in trials]
    table = report.format_table(results)
    if max_length is not None:
        table += "\n" + report.format_table_by_length(results, max_length)
    atomic_files.write_text(Path(values.output_dir) / f"{experiment}.md", table)
    return table


def _run(argv, values):
    _check_flags(argv, values)
    experiment = argv[1]
    trials = _make_trials(experiment, values)
    # All variants with the first seed come before the second seed.
    ordered = [trial for seeds in zip(*trials) for trial in seeds]
    for number, trial in enumerate(ordered, start=1):
        trial.run()
        table = _write_report(experiment, trials, values)
        done = f"{trial.variant.label}, seed {trial.seed}: done"
        write_line(f"{experiment} {number}/{len(ordered)}: {done}")
    print(table)


def _exit_on_signal(received, frame):
    # The exit status that shells report for a program ended by a signal.
    sys.exit(128 + received)


def _how_to_resume():
    return "Rerun the same command to resume."


@errors.errors_as_exit_codes("paper_tables", (ValueError, TrialError), _how_to_resume)
def main(argv: list[str], values: flags.FlagValues = flags.FLAGS):
    """Runs the program with parsed flags; `argv[1]` is the experiment."""
    signal.signal(signal.SIGTERM, _exit_on_signal)
    _run(argv, values)


if __name__ == "__main__":
    define_flags()
    app.run(main)
