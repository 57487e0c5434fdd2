"""Trains the Transformer on JAX, on all devices, and translates with beam search.

    python -m examples.synthetic_corpus runs/corpus
    python -m examples.jax_translation runs/corpus/train.en runs/corpus/train.de \
        --input=runs/corpus/test.en

Sentences are lines of words separated by spaces. To try several devices on a CPU, set
XLA_FLAGS=--xla_force_host_platform_device_count=2. KERAS_BACKEND=torch trains on one device.
"""

import collections
import os
import sys

# Must be set before Keras is imported.
os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from absl import app, flags

from t2t_relpos import Transformer

FLAGS = flags.FLAGS


def define_flags():
    """Defines the flags of this program."""
    flags.DEFINE_string("preset", "tiny", "Sizes of the model.")
    flags.DEFINE_integer("steps", 600, "Number of training steps.", lower_bound=1)
    flags.DEFINE_integer("batch_size", 64, "Sentence pairs per step.", lower_bound=1)
    flags.DEFINE_integer("max_length", 24, "Longest sentence in words.", lower_bound=2)
    flags.DEFINE_integer("vocab_size", 4000, "Largest number of words.", lower_bound=4)
    flags.DEFINE_string("input", None, "Text file whose first lines are translated.")
    flags.DEFINE_integer("lines", 5, "Number of lines to translate.", lower_bound=1)


class Words:
    """A mapping from words to ids: 0 is padding, 1 ends a sentence, 2 is an unknown word."""

    def __init__(self, lines, vocab_size):
        counts = collections.Counter(word for line in lines for word in line.split())
        self._words = [word for word, _ in counts.most_common(vocab_size - 3)]
        self._ids = {word: i for i, word in enumerate(self._words, start=3)}
        self.vocab_size = len(self._words) + 3

    def encode(self, lines, length):
        """Returns int ids `[lines, length]`, padded with 0. Longer sentences are truncated."""
        ids = np.zeros((len(lines), length), "int32")
        for row, line in zip(ids, lines):
            codes = [self._ids.get(word, 2) for word in line.split()][: length - 1] + [1]
            row[: len(codes)] = codes
        return ids

    def decode(self, ids):
        return " ".join(self._words[i - 3] if i > 2 else "<unk>" for i in ids if i > 1)


def read_lines(path):
    with open(path, encoding="utf-8") as file:
        return [line.strip() for line in file]


def use_all_devices(batch_size):
    """Distributes batches over all devices of JAX. Each device holds all weights.

    Returns the number of devices.
    """
    devices = keras.distribution.list_devices()
    if batch_size % len(devices):
        sys.exit(f"jax_translation: --batch_size must be a multiple of {len(devices)} devices.")
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    return len(devices)


def train(model, source, target, *, steps, batch_size, learning_rate=2e-3):
    """Trains on random pairs of rows of two id arrays. Returns the loss of every step."""
    rows = np.random.default_rng(1).integers(0, len(source), (steps, batch_size))
    model.compile(
        keras.optimizers.Adam(learning_rate),
        keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
    )
    losses = []
    for number, batch in enumerate(rows, start=1):
        x, y = {"inputs": source[batch], "targets": target[batch]}, target[batch]
        losses.append(float(model.train_on_batch(x, y, sample_weight=(y != 0))))
        if number % 100 == 0:
            print(f"step {number}/{steps}: loss {np.mean(losses[-100:]):.4f}", flush=True)
    return losses


def main(argv):
    if len(argv) != 3:
        sys.exit("jax_translation: Expected two text files, of source and target sentences.")
    if keras.backend.backend() == "jax":
        print(f"Devices: {use_all_devices(FLAGS.batch_size)}")
    keras.utils.set_random_seed(1)
    source, target = map(read_lines, argv[1:])
    words = Words(source + target, FLAGS.vocab_size)
    source, target = (words.encode(lines, FLAGS.max_length) for lines in (source, target))
    model = Transformer.from_preset(FLAGS.preset, vocab_size=words.vocab_size)
    train(model, source, target, steps=FLAGS.steps, batch_size=FLAGS.batch_size)
    if FLAGS.input:
        lines = read_lines(FLAGS.input)[: FLAGS.lines]
        # Compiled with jax.jit.
        outputs = model.generate(words.encode(lines, FLAGS.max_length), "beam", FLAGS.max_length)
        for line, ids in zip(lines, outputs):
            print(f"{line}\n  {words.decode(ids)}")


if __name__ == "__main__":
    define_flags()
    app.run(main)
