"""Trains models to fill holes in Python functions, with edge labels, positions or neither.

    python -m examples.python_trees
    python -m examples.python_trees --seeds=1 --epochs=2 --width=32

Prints a table of test accuracies.
"""

import os

# Must be set before TensorFlow is imported; hides its start-up log.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from absl import app, flags

from examples.python_trees import data, models

flags.DEFINE_list("seeds", ["1", "2", "3"], "Comma-separated seeds; one run of every model each.")
flags.DEFINE_integer("epochs", 4, "Number of training epochs.", lower_bound=1)
flags.DEFINE_integer("width", 64, "Width of the models, a multiple of 4.", lower_bound=4)
flags.DEFINE_string("source", None, "Folder of Python files. Default: Python's standard library.")
FLAGS = flags.FLAGS


def train(kind, seed, splits, vocabulary):
    """Trains a model and returns its test accuracy in percent."""
    keras.utils.set_random_seed(seed)
    train, dev, test = (
        data.Batches(examples, vocabulary, 32, edges=kind == "relations", seed=seed)
        for examples, seed in zip(splits.values(), (seed, None, None))
    )
    model = models.make_model(kind, vocabulary, FLAGS.width)
    steps = FLAGS.epochs * len(train)
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
    epochs = FLAGS.epochs
    model.fit(train, validation_data=dev, epochs=epochs, callbacks=[best_weights], verbose=2)
    return 100 * model.evaluate(test, verbose=0, return_dict=True)["accuracy"]


def main(_):
    splits = data.read_examples(FLAGS.source)
    print("Examples:", ", ".join(f"{len(splits[split])} {split}" for split in splits))
    vocabulary = data.make_vocabulary(splits["train"])
    lines = []
    for kind in models.ATTENTION:
        values = [train(kind, int(seed), splits, vocabulary) for seed in FLAGS.seeds]
        cells = " | ".join(f"{value:.1f}" for value in [*values, np.mean(values)])
        spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
        lines.append(f"| {kind} | {cells}{spread} |")
    print("\nTest accuracy in percent: of each seed, and the mean", *lines, sep="\n")


if __name__ == "__main__":
    app.run(main)
