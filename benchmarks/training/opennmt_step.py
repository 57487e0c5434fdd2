"""The training step of OpenNMT-tf 2.32. Runs in OpenNMT-tf's environment.

Loss, optimizer and schedule are the defaults of its `auto_config` for a Transformer.
"""

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.workers import tensorflow_with_threads

START_ID = 1


def make(settings):
    """Returns `prepare(batches)`, which returns a function that trains a model on the batches."""
    tf = tensorflow_with_threads(settings["threads"])
    tf.random.set_seed(1)
    model = _make_model(settings)
    optimizer = model.get_optimizer()
    ids, lengths = tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([None], tf.int32)
    signature = {"ids": ids, "length": lengths}, {"ids": ids, "ids_out": ids, "length": lengths}

    @tf.function(input_signature=signature)
    def step(features, labels):
        return model.train(features, labels, optimizer)

    def prepare(batches):
        tensors = [tf.nest.map_structure(tf.constant, convert_batch(*batch)) for batch in batches]
        return lambda: [float(step(*batch)) for batch in tensors]

    return prepare


def _make_model(settings):
    # Imported here, because a test of `convert_batch` runs without OpenNMT-tf.
    from benchmarks.decoding import opennmt_model

    config = settings["config"]
    model = opennmt_model.make_transformer(config)
    params = model.auto_config()["params"] | {"label_smoothing": settings["label_smoothing"]}
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder) / "vocabulary.txt"
        tokens = [f"token{i}" for i in range(config["vocab_size"] - opennmt_model.EOS_ID - 1)]
        vocabulary.write_text("\n".join([*opennmt_model.SPECIAL_TOKENS, *tokens]) + "\n")
        opennmt_model.initialize(model, str(vocabulary), params, config)
    return model


def convert_batch(inputs, targets):
    """Returns OpenNMT-tf's features and labels of a batch of this project's ids.

    This project's vocabulary starts with padding and EOS. OpenNMT-tf's starts with padding, start
    and EOS, and ends with the unknown token. All ids except padding are therefore larger by one.

    Args:
        inputs: int `[B, S]`.
        targets: int `[B, T]`.
    """
    source, target = (np.where(ids == 0, 0, ids + 1).astype("int64") for ids in (inputs, targets))
    lengths = [np.count_nonzero(ids, axis=1).astype("int32") for ids in (source, target)]
    shifted = np.concatenate([np.full((len(target), 1), START_ID), target[:, :-1]], axis=1)
    # Shifting moved the EOS of shorter sentences into the input; replace it by padding.
    shifted[np.arange(shifted.shape[1]) >= lengths[1][:, None]] = 0
    labels = {"ids": shifted, "ids_out": target, "length": lengths[1]}
    return {"ids": source, "length": lengths[0]}, labels
