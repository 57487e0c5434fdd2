"""Trains the models of the paper's tables and puts their BLEU beside the paper's.

    python -m examples.paper_tables table1 --data=wmt14_translate/de-en --presets=shaw_base,shaw_big
    python -m examples.paper_tables table2 --data=FOLDER --dev=val --test=test_2016 --presets=tiny --train_steps=1000 --seeds=1,2
    python -m examples.paper_tables lengths --data=synthetic --presets=tiny

table1: absolute and relative positions, and both; table2: clipping distances; table3: with and without a^V and a^K; positions: every
kind of them; lengths: relative and absolute ones, trained on short sentences alone, by length. Every row is trained by
`trainer.train` with the same settings, once for each seed; then the dev set and the test sets are translated. The same command goes
on where it was stopped or killed; rows that two tables share are trained once. Several of these programs may run side by side: one
takes other rows first than those that another is training.

--output_dir holds EXPERIMENT.md, .csv and, with matplotlib, .png, written anew after every row, and under rows/ a folder for each.
"""

import os
import signal
import sys
from pathlib import Path

# TensorFlow's start-up notes would stand between the lines that are for the reader.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from absl import app, flags

from trainer import atomic_files, settings
from trainer.config import RunConfig
from trainer.recipes import RECIPES
from trainer.visualization import matplotlib_figures

EXPERIMENTS = ("table1", "table2", "table3", "positions", "lengths")
# What all rows share, as flags of `trainer.train`.
SHARED = (
    *(
        "vocab_size",
        "train_steps",
        "batch_tokens",
        "device_tokens",
        "learning_rate",
        "warmup_steps",
        "label_smoothing",
    ),
    *(
        "dropout",
        "attention_dropout",
        "activation_dropout",
        "clip_norm",
        "precision",
        "checkpoint_every",
        "keep_checkpoints",
    ),
)


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`: its own, and those of `trainer.train` that are for all rows."""

    def define(kind, *args, **kwargs):
        kind(*args, flag_values=values, **kwargs)

    define(
        flags.DEFINE_string,
        "data",
        None,
        "A folder of text files SPLIT.LANGUAGE[.gz], 'synthetic', or a TensorFlow Datasets name.",
    )
    define(
        flags.DEFINE_string,
        "data_dir",
        None,
        "Where TensorFlow Datasets keeps its data. Default: ~/tensorflow_datasets.",
    )
    define(flags.DEFINE_string, "direction", "en-de", "Source and target language.")
    define(flags.DEFINE_string, "train", "train", "With a folder: name of the training split.")
    define(flags.DEFINE_string, "dev", "dev", "With a folder: name of the dev split.")
    define(flags.DEFINE_list, "test", ["test"], "Names of the test sets, with commas between them.")
    define(
        flags.DEFINE_list,
        "presets",
        ["shaw_base"],
        "Architectures and recipes, one after the other.",
    )
    define(flags.DEFINE_list, "seeds", ["1"], "A model is trained with each.")
    define(
        flags.DEFINE_integer,
        "short",
        16,
        "With lengths: tokens of the longest sentence to train on.",
        lower_bound=4,
    )
    define(
        flags.DEFINE_string,
        "output_dir",
        "runs/experiments",
        "Where tables, plots and models are written.",
    )
    settings.define_flags(RunConfig, values, SHARED)


def _settings(values, preset):
    """What `trainer.train` is told of the settings that all rows share; the number of steps always."""
    given = {name: values[name].value for name in SHARED if values[name].value is not None}
    return {"train_steps": RECIPES[preset]["train_steps"]} | given


def _check(argv, values):
    if len(argv) != 2 or argv[1] not in EXPERIMENTS:
        raise ValueError(
            f"Expected one of {', '.join(EXPERIMENTS)}. Received: {' '.join(argv[1:]) or 'none'}."
        )
    if values.data is None:
        raise ValueError(
            "Expected --data. Received: none. Give a folder of text files, 'synthetic', or a TensorFlow Datasets name."
        )
    unknown = [preset for preset in values.presets if preset not in RECIPES]
    if unknown or not values.presets:
        raise ValueError(
            f"Expected presets out of {', '.join(RECIPES)}. Received: {', '.join(unknown) or 'none'}. Correct --presets."
        )
    if not values.seeds or not all(seed.isdecimal() for seed in values.seeds):
        raise ValueError(
            f"Expected seeds, whole numbers from 0. Received: {','.join(values.seeds) or 'none'}. Correct --seeds."
        )


def _trials(experiment, values):
    from examples.paper_tables.datasets import Sentences
    from examples.paper_tables.trial import Trial
    from examples.paper_tables.variants import rows

    sentences = Sentences(
        values.data, values.data_dir, values.direction, values.train, values.dev, tuple(values.test)
    )
    parent = Path(values.output_dir) / "rows"
    made = rows(experiment, values.presets, values.short)
    return [
        [
            Trial(row, int(seed), _settings(values, row.preset), sentences, parent)
            for seed in values.seeds
        ]
        for row in made
    ]


def _write_report(experiment, trials, values, scored):
    """Writes the table, and the plot where that can be drawn; returns the table.

    `scored` has the results of trials that were done before, by folder, and gets those of the others.
    """
    from examples.paper_tables import plots, report
    from examples.paper_tables.scoring import result

    longest = values.short if experiment == "lengths" else None
    results = [
        [scored.get(trial.folder) or result(trial, longest) for trial in of_row]
        for of_row in trials
    ]
    scored |= {one.trial.folder: one for of_row in results for one in of_row if one.scores}
    table = report.markdown(results)
    if longest is not None:
        table += "\n" + report.markdown_by_length(results, longest)
    stem = Path(values.output_dir) / experiment
    atomic_files.write_text(f"{stem}.md", table)
    atomic_files.write_text(f"{stem}.csv", report.csv_text(results, longest))
    if matplotlib_figures.has_matplotlib():
        image = Path(f"{stem}.png")
        plots.plot_rows(image, results) if longest is None else plots.plot_lengths(
            image, results, longest
        )
    return table


def _run(argv, values):
    from examples.paper_tables.trial import TrialError, run_all

    _check(argv, values)
    experiment = argv[1]
    trials = _trials(experiment, values)
    # All rows with one seed before the next seed.
    in_turn = [of_row[number] for number in range(len(values.seeds)) for of_row in trials]
    scored = {}
    try:
        for number, trial in enumerate(run_all(in_turn), start=1):
            table = _write_report(experiment, trials, values, scored)
            print(
                f"{experiment} {number}/{len(in_turn)}: {trial.row.label}, seed {trial.seed} is done.",
                flush=True,
            )
    except TrialError as error:
        raise ValueError(str(error)) from error
    print(table)


def _stop(received, frame):
    # As shells report a program that a signal ended.
    sys.exit(128 + received)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS):
    """Runs the program with parsed flags; `argv` holds the experiment."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        _run(argv, values)
    except (ValueError, OSError) as error:
        sys.exit(f"paper_tables: {error}")
    except KeyboardInterrupt:
        sys.exit("paper_tables: stopped. The same command goes on.")


if __name__ == "__main__":
    define_flags()
    app.run(main)
