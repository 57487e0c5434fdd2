"""Trains models to fill holes in Python functions, with edge labels, positions or neither.

    python -m examples.python_trees
    python -m examples.python_trees --models=relations --seeds=1 --epochs=2 --width=32

Prints a table of test accuracies and appends one line per model and seed to --output.
"""

import csv
import os
import pathlib
import platform
import sys

# Must be set before TensorFlow is imported; hides its start-up log.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from absl import app, flags

from examples.python_trees import data, models

flags.DEFINE_list("models", list(models.KINDS), "Comma-separated models to train.")
flags.DEFINE_list("seeds", ["1", "2", "3"], "Comma-separated seeds; one run of every model each.")
flags.DEFINE_integer("epochs", 4, "Number of training epochs.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Number of functions in a batch.", lower_bound=1)
flags.DEFINE_float(
    "learning_rate", 2e-3, "Peak learning rate, after a warm-up of 5 % of the steps; cosine decay."
)
flags.DEFINE_integer("width", 64, "Width of the models.", lower_bound=1)
flags.DEFINE_integer("num_layers", 2, "Number of attention layers.", lower_bound=1)
flags.DEFINE_integer("num_heads", 4, "Number of attention heads.", lower_bound=1)
flags.DEFINE_float("dropout", 0.1, "Dropout rate of the sublayers.", lower_bound=0, upper_bound=0.9)
flags.DEFINE_integer("max_nodes", 64, "Maximum number of nodes of a function.", lower_bound=2)
flags.DEFINE_integer("max_holes", 4, "Maximum number of examples per function.", lower_bound=1)
flags.DEFINE_string(
    "source", None, "Folder of Python files. Default: the standard library of the running Python."
)
flags.DEFINE_string("output", "runs/python_trees.csv", "CSV file to append results to.")
FLAGS = flags.FLAGS
_SETTINGS = (
    "epochs batch_size learning_rate width num_layers num_heads dropout max_nodes max_holes".split()
)


def train(kind: str, seed: int, splits, vocabulary) -> dict:
    """Trains a model and returns its accuracies and settings."""
    keras.utils.set_random_seed(seed)
    edges = kind == "relations"
    batches = {
        split: data.Batches(
            examples,
            vocabulary,
            FLAGS.batch_size,
            edges=edges,
            seed=seed if split == "train" else None,
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
    # With this patience, training never stops early. The callback only restores the best weights.
    best_weights = keras.callbacks.EarlyStopping(
        "val_accuracy", mode="max", patience=FLAGS.epochs, restore_best_weights=True
    )
    model.fit(
        batches["train"],
        validation_data=batches["dev"],
        epochs=FLAGS.epochs,
        callbacks=[best_weights],
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


def append_result(path: pathlib.Path, result: dict):
    """Appends a line to a CSV file. Writes a header if the file is new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, result)
        if is_new:
            writer.writeheader()
        writer.writerow(result)


def format_table(results: list[dict], baselines: dict[str, float]) -> str:
    """Returns a Markdown table of test accuracies in percent, a line per baseline and model."""
    seeds = sorted({result["seed"] for result in results})
    lines = ["| | " + " | ".join(f"seed {seed}" for seed in seeds) + " | mean ± std |"]
    lines.append("| --- |" + " ---: |" * (len(seeds) + 1))
    for name, accuracy in baselines.items():
        lines.append(f"| {name} |" + " |" * len(seeds) + f" {100 * accuracy:.1f} |")
    for kind in dict.fromkeys(result["model"] for result in results):
        by_seed = {r["seed"]: 100 * r["test_accuracy"] for r in results if r["model"] == kind}
        cells = [f"{by_seed[seed]:.1f}" if seed in by_seed else "" for seed in seeds]
        values = list(by_seed.values())
        spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
        lines.append(f"| {kind} | " + " | ".join(cells) + f" | {np.mean(values):.1f}{spread} |")
    return "\n".join(lines)


def main(_):
    unknown = set(FLAGS.models) - set(models.KINDS)
    if unknown:
        raise app.UsageError(
            f"--models must be among {','.join(models.KINDS)}, got {','.join(sorted(unknown))}."
        )
    splits = data.read_examples(FLAGS.source, FLAGS.max_nodes, FLAGS.max_holes)
    vocabulary = data.make_vocabulary(splits["train"])
    sizes = ", ".join(f"{len(examples)} {split}" for split, examples in splits.items())
    print(f"Examples: {sizes}")
    results = []
    for seed in map(int, FLAGS.seeds):
        for kind in FLAGS.models:
            results.append(train(kind, seed, splits, vocabulary))
            append_result(pathlib.Path(FLAGS.output), results[-1])
            accuracies = [
                f"{split} accuracy = {100 * results[-1][f'{split}_accuracy']:.2f}"
                for split in ("dev", "test")
            ]
            print(f"{kind}, seed {seed}: {', '.join(accuracies)}", flush=True)
    print("\nTest accuracy in percent")
    print(format_table(results, data.baseline_accuracies(splits["test"])))


if __name__ == "__main__":
    app.run(main, argv=sys.argv)
