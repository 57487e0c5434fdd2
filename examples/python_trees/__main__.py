"""Trains models to fill holes in Python functions, with edge labels, positions or neither.

    python -m examples.python_trees
    python -m examples.python_trees --models=relations --seeds=1 --epochs=2 --width=32

Prints a table of test accuracies.
"""

import os
import sys

# Must be set before TensorFlow is imported; hides its start-up log.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from absl import app, flags

from examples.python_trees import data, models

flags.DEFINE_list("models", list(models.ATTENTION), "Comma-separated models to train.")
flags.DEFINE_list("seeds", ["1", "2", "3"], "Comma-separated seeds; one run of every model each.")
flags.DEFINE_integer("epochs", 4, "Number of training epochs.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Number of functions in a batch.", lower_bound=1)
flags.DEFINE_integer("width", 64, "Width of the models, a multiple of 4.", lower_bound=4)
flags.DEFINE_string("source", None, "Folder of Python files. Default: Python's standard library.")
FLAGS = flags.FLAGS


def train(kind, seed, splits, vocabulary):
    """Trains a model and returns its test accuracy in percent."""
    keras.utils.set_random_seed(seed)
    batches = {
        split: data.Batches(
            examples,
            vocabulary,
            FLAGS.batch_size,
            edges=kind == "relations",
            seed=seed if split == "train" else None,
        )
        for split, examples in splits.items()
    }
    model = models.make_model(kind, vocabulary, FLAGS.width)
    steps = FLAGS.epochs * len(batches["train"])
    warmup = max(1, steps // 20)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps - warmup, warmup_target=2e-3, warmup_steps=warmup
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
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
    return 100 * model.evaluate(batches["test"], verbose=0, return_dict=True)["accuracy"]


def format_table(accuracies, baselines):
    """Returns a Markdown table of test accuracies in percent by model and seed, and baselines."""
    lines = ["| " + "".join(f"| seed {seed} " for seed in FLAGS.seeds) + "| mean ± std |"]
    lines.append("| --- |" + " ---: |" * (len(FLAGS.seeds) + 1))
    for name, accuracy in baselines.items():
        lines.append(f"| {name} |" + " |" * len(FLAGS.seeds) + f" {100 * accuracy:.1f} |")
    for kind, values in accuracies.items():
        spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
        cells = "".join(f" {value:.1f} |" for value in values)
        lines.append(f"| {kind} |{cells} {np.mean(values):.1f}{spread} |")
    return "\n".join(lines)


def main(_):
    unknown = set(FLAGS.models) - set(models.ATTENTION)
    if unknown:
        raise app.UsageError(
            f"--models must be among {','.join(models.ATTENTION)}, got {','.join(sorted(unknown))}."
        )
    splits = data.read_examples(FLAGS.source)
    vocabulary = data.make_vocabulary(splits["train"])
    sizes = ", ".join(f"{len(examples)} {split}" for split, examples in splits.items())
    print(f"Examples: {sizes}")
    accuracies = {kind: [] for kind in FLAGS.models}
    for seed in map(int, FLAGS.seeds):
        for kind in FLAGS.models:
            accuracies[kind].append(train(kind, seed, splits, vocabulary))
            print(f"{kind}, seed {seed}: test accuracy {accuracies[kind][-1]:.2f}", flush=True)
    print("\nTest accuracy in percent")
    print(format_table(accuracies, data.baseline_accuracies(splits["test"])))


if __name__ == "__main__":
    app.run(main, argv=sys.argv)
