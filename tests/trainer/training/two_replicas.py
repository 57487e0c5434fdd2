"""Trains the same model on the same batches on one device and on two, and writes what came out of both; run by a test."""

import sys

import keras
import numpy as np
import tensorflow as tf

from t2t_relpos.models import Transformer, TransformerConfig
from trainer.training.strategy import make_strategy
from trainer.training.training_model import TrainingModel

CONFIG = TransformerConfig(
    vocab_size=13, num_encoder_layers=1, num_decoder_layers=1, hidden_dim=6, intermediate_dim=7, num_heads=3, dropout=0.0
)
SPEC = {side: tf.TensorSpec([None, None], tf.int32) for side in ("inputs", "targets")}


def batches():
    """Rows are divided between the devices: unlike numbers of tokens, only padding on the second, no row on the second."""
    generator = np.random.default_rng(3)
    made = []
    for rows, length, real_in_second_half in ((5, 4, 1), (4, 5, 0), (1, 3, 3)):
        inputs = generator.integers(2, 13, (rows, length + 2))
        targets = generator.integers(2, 13, (rows, length))
        targets[(rows + 1) // 2 :, real_in_second_half:] = 0
        made.append({"inputs": inputs.astype("int32"), "targets": targets.astype("int32")})
    return made


def dataset(batches):
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=SPEC)


def results(strategy):
    keras.utils.set_random_seed(7)
    with strategy.scope():
        model = TrainingModel(Transformer(CONFIG), label_smoothing=0.1)
        model.compile(keras.optimizers.SGD(1.0))
    start = model.get_weights()
    found = {}

    def train(name, batches, rate=1.0, epochs=1):
        model.set_weights(start)
        model.optimizer.learning_rate = rate
        history = model.fit(
            dataset(batches).repeat(), epochs=epochs, steps_per_epoch=len(batches), verbose=0, shuffle=False
        ).history
        for key, values in history.items():
            found[f"{name} {key}"] = np.array(values)
        for i, weights in enumerate(model.transformer.trainable_variables):
            # With a rate of 1, what one step took off is the gradient.
            found[f"{name} step {i}"] = start[i] - weights.numpy()

    for i, batch in enumerate(batches()):
        train(f"batch {i}", [batch])
    train("20 steps", batches()[:2], rate=0.1, epochs=10)
    model.set_weights(start)
    evaluated = model.evaluate(dataset(batches()), steps=3, verbose=0, return_dict=True)
    return found | {f"evaluate {key}": value for key, value in evaluated.items()}


if __name__ == "__main__":
    mirrored = make_strategy("mirrored", logical_devices=2)
    assert mirrored.num_replicas_in_sync == 2
    np.savez(sys.argv[1], **results(mirrored))
    np.savez(sys.argv[2], **results(make_strategy("one")))
