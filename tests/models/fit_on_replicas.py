"""Trains models by plain `fit` on two devices and on one, and prints the results. Run by a test."""

import json

import keras
import numpy as np
import tensorflow as tf
from small_transformers import small_config

from t2t_relpos.attention import attend
from t2t_relpos.layers import (
    LearnedPositionEmbedding,
    RelationMultiHeadAttention,
    RelativeMultiHeadAttention,
    TokenEmbedding,
    TransformerEncoder,
)
from t2t_relpos.models import CausalLM, Transformer

LENGTH, WIDTH, CLASSES = 5, 6, 13


class AllIntegers(keras.Model):
    """A model in which each check of an integer or mask dtype has an input of the data."""

    def __init__(self):
        super().__init__()
        self.embedding = TokenEmbedding(CLASSES, WIDTH)
        self.position = LearnedPositionEmbedding(LENGTH)
        self.encoder = TransformerEncoder(7, 2, max_relative_position=3)
        self.attention = RelativeMultiHeadAttention(2, 3, max_relative_position=3)
        self.relations = RelationMultiHeadAttention(2, 3, num_relations=4)
        self.table = self.add_weight(shape=(4, WIDTH), initializer="glorot_uniform")

    def call(self, inputs):
        positions, mask = inputs["positions"], inputs["mask"]
        pairs = mask[:, None] * mask[:, :, None]
        x = self.position(self.embedding(inputs["ids"]), positions=positions)
        x = self.encoder(x, padding_mask=mask, attention_mask=pairs)
        x = self.attention(
            x,
            x,
            query_mask=mask,
            attention_mask=pairs,
            query_positions=positions,
            key_positions=positions,
        )
        x = self.relations(x, x, relations=inputs["relations"], value_mask=mask)
        head = x[:, None]
        outputs, _ = attend(
            head, head, head, self.table, key_mask=mask, relative_ids=inputs["relations"]
        )
        return self.embedding(x + outputs[:, 0], reverse=True)


def all_integers(ids):
    positions = np.broadcast_to(np.arange(LENGTH)[::-1], ids.shape)
    relations = (ids[:, None] + ids[:, :, None]) % 4
    arrays = {"ids": ids, "positions": positions, "mask": ids > 2, "relations": relations}
    return {name: array.astype("int32") for name, array in arrays.items()}


MODELS = {
    "CausalLM": (lambda: CausalLM(CLASSES, 1, WIDTH, 7, 2, 3), lambda ids: ids),
    "Transformer": (
        lambda: Transformer(small_config(max_relative_position=3)),
        lambda ids: {"inputs": ids[:, ::-1], "targets": ids},
    ),
    "AllIntegers": (AllIntegers, all_integers),
}
# Number of batch entries, reduction of the loss, and methods. Of 9 entries, the last batch has one.
# Keras weights the mean losses of replicas equally, so losses are summed then.
CASES = dict.fromkeys(MODELS, (9, "sum", ["fit"]))
CASES["CausalLM"] = (8, "sum_over_batch_size", ["fit", "evaluate", "train_on_batch"])


def compiled(strategy, name, reduction):
    keras.utils.set_random_seed(1)
    classes = (
        keras.losses.SparseCategoricalCrossentropy,
        keras.metrics.SparseCategoricalCrossentropy,
    )
    with strategy.scope():
        model = MODELS[name][0]()
        loss, metric = (make(from_logits=True) for make in classes)
        loss.reduction = reduction
        model.compile(keras.optimizers.SGD(0.02), loss, metrics=[metric])
    return model


def results(strategy, name):
    """Returns mean losses by method and name."""
    size, reduction, methods = CASES[name]
    ids = np.random.default_rng(2).integers(1, CLASSES, (size, LENGTH)).astype("int32")
    inputs, model = MODELS[name][1](ids), compiled(strategy, name, reduction)
    return {method: losses(model, inputs, ids, method) for method in methods}


def losses(model, inputs, ids, method):
    options = {"batch_size": 4, "verbose": 0}
    if method == "fit":
        return model.fit(inputs, ids, epochs=2, shuffle=False, **options).history
    if method == "evaluate":
        return model.evaluate(inputs, ids, return_dict=True, **options)
    # Each replica gets the whole batch.
    steps = [model.train_on_batch(inputs, ids, return_dict=True) for _ in range(2)]
    return {key: [float(step[key]) for step in steps] for key in steps[0]}


def error_of_floats(strategy):
    model = compiled(strategy, "CausalLM", "sum")
    ids = np.ones((4, LENGTH))
    try:
        model.fit(ids, ids, verbose=0)
    except ValueError as error:
        return str(error)


def main():
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    halves = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], halves)
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    strategies = {"two": two, "one": tf.distribute.get_strategy()}
    found = {key: {name: results(x, name) for name in MODELS} for key, x in strategies.items()}
    print(json.dumps(found | {"floats": error_of_floats(two)}))


if __name__ == "__main__":
    main()
