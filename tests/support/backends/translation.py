"""Trains a model with examples/jax_translation.py and writes the losses and translations.

tests/examples/test_jax_translation.py runs this program:

    KERAS_BACKEND=jax python translation.py MODEL.keras RESULTS.npz DEVICES
"""

import sys

import keras
import numpy as np

import t2t_relpos  # noqa: F401  registers the layers
from examples.jax_translation import Words, train, use_all_devices

SOURCE = [
    f"the {subject} {verb} a {thing}"
    for subject in ("dog", "cat", "bird")
    for verb in ("sees", "hears")
    for thing in ("man", "woman", "child", "tree")
]
TARGET = [line.replace("the", "der").replace(" a ", " einen ") for line in SOURCE]
LENGTH, BATCH_SIZE, STEPS = 7, 4, 40


def words():
    """Returns the vocabulary of the sentences."""
    return Words(SOURCE + TARGET, 100)


def run(model):
    """Returns the training losses and the translations of the trained model, by name."""
    source, target = (words().encode(lines, LENGTH) for lines in (SOURCE, TARGET))
    losses = train(model, source, target, steps=STEPS, batch_size=BATCH_SIZE, learning_rate=1e-2)
    return {"losses": losses, "ids": model.generate(source[:5], max_length=LENGTH)}


def main(model_path, results_path, devices):
    if keras.backend.backend() == "jax":
        assert use_all_devices(BATCH_SIZE) == int(devices)
    np.savez(results_path, **run(keras.models.load_model(model_path)))


if __name__ == "__main__":
    main(*sys.argv[1:])
