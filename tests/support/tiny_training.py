"""A `TrainingModel` with one layer of width 8 instead of a Transformer, which trains fast."""

import keras
import numpy as np
import tensorflow as tf

from trainer.training.batch_parts import shard
from trainer.training.training_model import TrainingModel

VOCABULARY = 13
BATCH = {
    "inputs": np.array([[5, 7, 3, 1, 0], [8, 1, 0, 0, 0], [4, 4, 6, 2, 1]], "int32"),
    "targets": np.array([[9, 3, 1], [2, 1, 0], [1, 0, 0]], "int32"),
}


class TinyTransformer(keras.Model):
    """A dropout and a dense layer, with the interface of a Transformer that training uses."""

    def __init__(self, dropout=0.0, tied=True, width=8, dtype=None):
        super().__init__(dtype=dtype)
        # States and logits have about the scale of those of a Transformer.
        options = {"embeddings_initializer": keras.initializers.RandomNormal(stddev=1.0)}
        self.output_embedding = keras.layers.Embedding(VOCABULARY, width, **options, dtype=dtype)
        self.embedding = self.output_embedding
        if not tied:
            self.embedding = keras.layers.Embedding(VOCABULARY, width, **options, dtype=dtype)
        self.dropout = keras.layers.Dropout(dropout, dtype=dtype)
        self.dense = keras.layers.Dense(width, dtype=dtype)
        self.states({"inputs": np.ones((1, 1), "int32"), "targets": np.ones((1, 1), "int32")})
        self.output_embedding.build()
        self.built = True

    def states(self, batch, training=False):
        source = tf.reduce_mean(self.embedding(batch["inputs"]), axis=1, keepdims=True)
        previous = tf.pad(batch["targets"], [[0, 0], [1, 0]])[:, :-1]
        return self.dense(self.dropout(source + self.embedding(previous), training=training))

    def call(self, batch, training=False):
        """Returns logits."""
        table = tf.convert_to_tensor(self.output_embedding.embeddings)
        return tf.einsum("btd,vd->btv", self.states(batch, training), table)


def training_model(
    transformer=TinyTransformer,
    *,
    optimizer=keras.optimizers.SGD,
    rate=1.0,
    device_tokens=None,
    clip_norm=None,
    options=None,
    **settings,
):
    """Returns a compiled `TrainingModel` with label smoothing, which runs eagerly by default.

    Args:
        transformer: function that returns the Transformer.
        optimizer: class of the optimizer.
        rate: learning rate.
        device_tokens, clip_norm: as in `TrainingModel`.
        options: options of `compile`.
        **settings: arguments of `transformer`.
    """
    keras.utils.set_random_seed(7)
    model = TrainingModel(transformer(**settings), 0.1, device_tokens, clip_norm)
    model.compile(optimizer(rate), **{"run_eagerly": True} | (options or {}))
    return model


def fit(model, batch=BATCH, steps=1):
    """Trains on a batch repeatedly. Returns the logs of every step."""
    data = tf.data.Dataset.from_tensors(batch).repeat()
    return model.fit(data, steps_per_epoch=1, epochs=steps, verbose=0, shuffle=False).history


def dataset(batches):
    """Returns a dataset of batches of any shapes."""
    spec = {side: tf.TensorSpec([None, None], tf.int32) for side in ("inputs", "targets")}
    made = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)
    return made.apply(tf.data.experimental.assert_cardinality(len(batches)))


def fit_shards(strategy, model, batches, steps):
    """Trains on batches that are split over the devices. Returns the logs of every step."""
    data = shard(dataset(batches).repeat(), strategy)
    return model.fit(data, epochs=steps, steps_per_epoch=1, verbose=0, shuffle=False).history
