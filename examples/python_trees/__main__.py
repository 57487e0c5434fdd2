"""Trains models that know edges, positions or neither, and tells how often they fill the hole rightly.

    python -m examples.python_trees
    python -m examples.python_trees --models=relations --seeds=1 --epochs=2 --width=32

Appends a row for every model and seed to --output.
"""

import csv
import os
import pathlib
import platform
import sys

# TensorFlow's start-up notes would stand between the lines that are for the reader.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from absl import app, flags

from examples.python_trees import data, models

flags.DEFINE_list("models", list(models.KINDS), "Which models to train.")
flags.DEFINE_list(
    "seeds",
    ["1", "2", "3"],
    "A run of every model for each: its weights, dropout and order of batches.",
)
flags.DEFINE_integer("epochs", 4, "Times that a run sees the training examples.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Functions in a batch.", lower_bound=1)
flags.DEFINE_float(
    "learning_rate",
    2e-3,
    "Its peak, after a twentieth of the steps; then it falls as a cosine, to 0.",
)
flags.DEFINE_integer("width", 64, "Width of the models.", lower_bound=1)
flags.DEFINE_integer("num_layers", 2, "Layers of attention.", lower_bound=1)
flags.DEFINE_integer("num_heads", 4, "Heads of attention.", lower_bound=1)
flags.DEFINE_float("dropout", 0.1, "On what each layer adds.", lower_bound=0, upper_bound=0.9)
flags.DEFINE_integer("max_nodes", 64, "Larger functions are left out.", lower_bound=2)
flags.DEFINE_integer("max_holes", 4, "Holes drawn per function at most.", lower_bound=1)
flags.DEFINE_string(
    "source", None, "Folder of Python files. Default: the standard library of this Python."
)
flags.DEFINE_string("output", "runs/python_trees.csv", "CSV file that rows are appended to.")
FLAGS = flags.FLAGS
_SETTINGS = (
    "epochs batch_size learning_rate width num_layers num_heads dropout max_nodes max_holes".split()
)


def train(kind: str, seed: int, splits, vocabulary) -> dict:
    """Trains a model with `fit`; returns what is told about it."""
    keras.utils.set_random_seed(seed)
    edges = kind == "relations"
    batches = {
        split: data.Batches(
            examples, vocabulary, FLAGS.batch_size, edges, seed if split == "train" else None
        )
        for split, examples in splits.items()
    }
    model = models.make_model(
        kind, vocabulary, FLAGS.width, FLAGS.num_layers, FLAGS.num_heads, FLAGS.dropout
    )
    steps = FLAGS.epochs * len(batches["train"])
    warmup = max(1, steps // 20)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps - warmup, warmup_target=FLAGS.learning_rate, warmup_steps=warmup
    )
    model.compile(
        keras.optimizers.Adam(rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        batches["train"],
        validation_data=batches["dev"],
        epochs=FLAGS.epochs,
        # Never stops early, but ends with the weights of the epoch that was best on dev.
        callbacks=[
            keras.callbacks.EarlyStopping(
                "val_accuracy", mode="max", patience=FLAGS.epochs, restore_best_weights=True
            )
        ],
        verbose=2,
    )
    return {
        "model": kind,
        "seed": seed,
        "dev_accuracy": model.evaluate(batches["dev"], verbose=0, return_dict=True)["accuracy"],
        "test_accuracy": model.evaluate(batches["test"], verbose=0, return_dict=True)["accuracy"],
        "steps": steps,
        "parameters": model.count_params(),
        "flags": " ".join(f"--{name}={FLAGS[name].value}" for name in _SETTINGS),
        "python": platform.python_version(),
    }


def append_row(path: pathlib.Path, row: dict):
    """Appends to a CSV file; a new one gets a head line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, row)
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def table(rows: list[dict], guesses: dict[str, float]) -> str:
    """Test accuracies in percent as a Markdown table, a line for every guess and model."""
    seeds = sorted({row["seed"] for row in rows})
    lines = ["| | " + " | ".join(f"seed {seed}" for seed in seeds) + " | mean ± std |"]
    lines.append("| --- |" + " ---: |" * (len(seeds) + 1))
    for name, accuracy in guesses.items():
        lines.append(f"| {name} |" + " |" * len(seeds) + f" {100 * accuracy:.1f} |")
    for kind in dict.fromkeys(row["model"] for row in rows):
        of_seed = {row["seed"]: 100 * row["test_accuracy"] for row in rows if row["model"] == kind}
        cells = [f"{of_seed[seed]:.1f}" if seed in of_seed else "" for seed in seeds]
        values = list(of_seed.values())
        spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
        lines.append(f"| {kind} | " + " | ".join(cells) + f" | {np.mean(values):.1f}{spread} |")
    return "\n".join(lines)


def main(_):
    unknown = set(FLAGS.models) - set(models.KINDS)
    if unknown:
        raise app.UsageError(
            f"Expected --models among {','.join(models.KINDS)}. Received: {','.join(sorted(unknown))}."
        )
    splits = data.read_examples(FLAGS.source, FLAGS.max_nodes, FLAGS.max_holes)
    vocabulary = data.make_vocabulary(splits["train"])
    print(
        "Examples: " + ", ".join(f"{len(examples)} {split}" for split, examples in splits.items())
    )
    rows = []
    for seed in map(int, FLAGS.seeds):
        for kind in FLAGS.models:
            row = train(kind, seed, splits, vocabulary)
            rows.append(row)
            append_row(pathlib.Path(FLAGS.output), row)
            print(
                f"{kind}, seed {seed}: dev accuracy = {100 * row['dev_accuracy']:.2f}, "
                f"test accuracy = {100 * row['test_accuracy']:.2f}",
                flush=True,
            )
    print("\nTest accuracy in percent")
    print(table(rows, data.guesses(splits["test"])))


if __name__ == "__main__":
    app.run(main, argv=sys.argv)
