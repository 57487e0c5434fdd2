"""Trains a model on the same batches on several devices and writes the results. Run by tests.

replicas.py OUT_1 1 OUT_2 2 …   on 1, 2, … of the devices into which the CPU is split
replicas.py OUT                 as one of the workers of TF_CONFIG
"""

import sys

import numpy as np
import tensorflow as tf
from small_transformers import small_config
from tiny_training import TinyTransformer, dataset, fit_shards, training_model

from t2t_relpos.models import Transformer
from trainer.training.batch_parts import shard
from trainer.training.optimizer import FusedAdam
from trainer.training.strategy import make_strategy


def batches():
    """Returns batches that give replicas different numbers of tokens, padding only, or no entry."""
    generator = np.random.default_rng(3)
    made = []
    for rows, length, real in ((5, 4, (4, 1, 4, 1, 4)), (4, 5, (5, 0, 5, 0)), (1, 3, (3,))):
        inputs = generator.integers(2, 13, (rows, length + 2))
        targets = generator.integers(2, 13, (rows, length))
        for row, count in enumerate(real):
            targets[row, count:] = 0
        made.append({"inputs": inputs.astype("int32"), "targets": targets.astype("int32")})
    return made


def make_model(strategy, transformer=TinyTransformer, **settings):
    with strategy.scope():
        return training_model(transformer, options={"run_eagerly": False}, **settings)


def results(strategy):
    config = small_config(max_relative_position=16, max_length=256)
    found = {}
    # Replicas have unequal numbers of micro-batches.
    model = make_model(strategy, lambda: Transformer(config), device_tokens=7, clip_norm=2.0)
    start = model.get_weights()
    for name, data, rate, steps in (
        *((f"batch {i}", [batch], 1.0, 1) for i, batch in enumerate(batches())),
        ("6 steps", batches(), 0.1, 6),
    ):
        model.set_weights(start)
        model.optimizer.learning_rate = rate
        history = fit_shards(strategy, model, data, steps)
        found |= {f"{name} {key}": values for key, values in history.items()}
        for i, weights in enumerate(model.transformer.trainable_variables):
            # With a learning rate of 1, the change of one step is the gradient.
            found[f"{name} weights {i}"] = start[i] - weights.numpy()
    model = make_model(strategy, optimizer=FusedAdam, rate=0.01)
    found["Adam loss"] = fit_shards(strategy, model, batches(), 20)["loss"]
    data = shard(dataset(batches()), strategy)
    logs = model.evaluate(data, steps=3, verbose=0, return_dict=True)
    found |= {f"evaluate {key}": value for key, value in logs.items()}
    return found | with_dropout_in_float16(strategy)


def with_dropout_in_float16(strategy):
    """Returns results of a step with dropout, and of updates with gradients that are not finite.

    In the first step, every replica gets the same batch entry.
    """
    model = make_model(strategy, rate=0.1, dropout=0.5, dtype="mixed_float16")
    replicas = strategy.num_replicas_in_sync
    rows = {side: np.repeat(ids[:1], replicas, axis=0) for side, ids in batches()[0].items()}
    found = {"dropout loss": fit_shards(strategy, model, [rows], 1)["loss"]}
    found["dropout states"] = [
        [local.numpy() for local in strategy.experimental_local_results(state.value)]
        for state in model.transformer.non_trainable_variables
    ]
    found["moved"] = []
    for scale in (2.0**120, 2.0**10):
        before = model.get_weights()
        model.loss_scale.scale.assign(scale)
        found[f"scale {scale}"] = fit_shards(strategy, model, [rows], 2)["loss_scale"]
        pairs = zip(before, model.get_weights())
        found["moved"].append(any(np.any(one != other) for one, other in pairs))
    found["updates"] = model.optimizer.iterations.numpy()
    return found


def main(outputs):
    # The optimization of graphs takes longer than their execution.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    if len(outputs) == 1:
        np.savez(outputs[0], **results(make_strategy("multiworker")))
        return
    counts = [int(count) for count in outputs[1::2]]
    devices = make_strategy("mirrored", logical_devices=max(counts)).extended.worker_devices
    for count, output in zip(counts, outputs[::2]):
        strategy = tf.distribute.MirroredStrategy(devices[:count])
        assert strategy.num_replicas_in_sync == count
        np.savez(output, **results(strategy))


if __name__ == "__main__":
    main(sys.argv[1:])
