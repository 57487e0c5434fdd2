"""The training step of OpenNMT-tf 2.32, on our batches. Runs in OpenNMT-tf's own environment.

Loss, optimizer and schedule are what its `auto_config` chooses for a Transformer. Its vocabulary begins with three special tokens, of
which the third ends a sentence, and ends with one for the unknown; ours begins with padding and end of sentence.
"""

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.common.worker_protocol import tensorflow_with_threads

START_ID = 1


def make(settings):
    """Trains a new model, of drawn weights, on given batches."""
    tf = tensorflow_with_threads(settings["threads"])
    tf.random.set_seed(1)
    model = _model(settings)
    optimizer = model.get_optimizer()
    ids, lengths = tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([None], tf.int32)
    signature = {"ids": ids, "length": lengths}, {"ids": ids, "ids_out": ids, "length": lengths}

    @tf.function(input_signature=signature)
    def step(features, labels):
        return model.train(features, labels, optimizer)

    def prepare(batches):
        tensors = [tf.nest.map_structure(tf.constant, their_batch(*batch)) for batch in batches]
        return lambda: {"losses": [float(step(*batch)) for batch in tensors]}

    return prepare


def _model(settings):
    # Here, so that what makes batches can be had without OpenNMT-tf.
    from benchmarks.decoding import opennmt_model

    config = settings["config"]
    model = opennmt_model.transformer(config)
    params = model.auto_config()["params"] | {"label_smoothing": settings["label_smoothing"]}
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder) / "vocabulary.txt"
        pieces = [f"piece{i}" for i in range(config["vocab_size"] - opennmt_model.EOS_ID - 1)]
        vocabulary.write_text("\n".join(["<blank>", "<s>", "</s>", *pieces]) + "\n")
        opennmt_model.initialize(model, str(vocabulary), params, config)
    return model


def their_batch(inputs, targets):
    """Features and labels of a batch of our ids `[B, S]` and `[B, T]`."""
    source, target = (np.where(ids == 0, 0, ids + 1).astype("int64") for ids in (inputs, targets))
    lengths = [np.count_nonzero(ids, axis=1).astype("int32") for ids in (source, target)]
    shifted = np.concatenate([np.full((len(target), 1), START_ID), target[:, :-1]], axis=1)
    # The end of a shorter sentence is put in nowhere.
    shifted[np.arange(shifted.shape[1]) >= lengths[1][:, None]] = 0
    return {"ids": source, "length": lengths[0]}, {
        "ids": shifted,
        "ids_out": target,
        "length": lengths[1],
    }
