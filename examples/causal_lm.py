"""Trains a character-level language model on a text file, then continues a line.

    python -m examples.causal_lm FILE --prompt="A man"

Each line of the file is one training text. The file may be compressed (.gz). With the default
flags, the program takes about two minutes on 2 cores.
"""

import gzip
import os
import sys

# Must be set before TensorFlow is imported; hides log lines of its start.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from absl import app, flags

from t2t_relpos import CausalLM
from t2t_relpos.decoding import TopPSampler

FLAGS = flags.FLAGS


def define_flags():
    """Defines the flags of this program."""
    flags.DEFINE_string("prompt", "A ", "Beginning of the generated lines.")
    flags.DEFINE_integer("steps", 600, "Number of training steps.", lower_bound=1)
    flags.DEFINE_integer("batch_size", 32, "Lines per step.", lower_bound=1)
    flags.DEFINE_integer(
        "max_length", 96, "Maximum length; longer lines are truncated.", lower_bound=8
    )
    flags.DEFINE_integer("seed", 1, "Seed of weights, batches and generated lines.")


def read_lines(path):
    """Returns the non-empty lines of a text file."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]


class Characters:
    """A mapping from characters to ids: 0 is padding, 1 ends a line, 2 is an unknown character."""

    def __init__(self, lines):
        self._characters = sorted(set("".join(lines)))
        self._ids = {character: i for i, character in enumerate(self._characters, start=3)}

    @property
    def vocab_size(self):
        return len(self._characters) + 3

    def encode(self, line):
        return [self._ids.get(character, 2) for character in line]

    def decode(self, ids):
        return "".join(self._characters[i - 3] for i in ids if i >= 3)


def encode_lines(lines, characters, max_length):
    """Returns int ids `[lines, max_length]`, padded with 0."""
    ids = np.zeros((len(lines), max_length), "int32")
    for row, line in zip(ids, lines):
        codes = (characters.encode(line) + [1])[:max_length]
        row[: len(codes)] = codes
    return ids


def report_step(batch, logs):
    """Prints the mean loss, after the first step and after every 100 steps."""
    step = batch + 1
    if step == 1 or step % 100 == 0:
        print(f"step {step}/{FLAGS.steps}: loss {logs['loss']:.4f}", flush=True)


def main(argv):
    if len(argv) != 2:
        sys.exit("examples.causal_lm: Expected the path of a text file.")
    keras.utils.set_random_seed(FLAGS.seed)
    lines = read_lines(argv[1])
    characters = Characters(lines)
    ids = encode_lines(lines, characters, FLAGS.max_length)
    model = CausalLM(
        vocab_size=characters.vocab_size,
        num_layers=2,
        hidden_dim=128,
        intermediate_dim=256,
        num_heads=4,
        max_relative_position=16,
    )
    rows = np.random.default_rng(FLAGS.seed).integers(0, len(ids), FLAGS.steps * FLAGS.batch_size)
    model.compile(
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(3e-3, FLAGS.steps)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    batches = ids[rows]
    print(f"Training on {len(lines)} lines. Compiling the first step.", flush=True)
    model.fit(
        batches,
        batches,
        sample_weight=(batches != 0).astype("float32"),
        batch_size=FLAGS.batch_size,
        shuffle=False,
        verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=report_step)],
    )
    prompt = np.array([characters.encode(FLAGS.prompt)] * 3, "int32")
    outputs = model.generate(prompt, TopPSampler(p=0.9, seed=FLAGS.seed), FLAGS.max_length)
    for output in outputs:
        print(characters.decode(output))


if __name__ == "__main__":
    define_flags()
    app.run(main)
