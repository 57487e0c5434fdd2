"""Trains on one device without XLA and on two with XLA, and prints results. Run by tests."""

import contextlib
import json
import sys

import numpy as np
import tensorflow as tf
from small_transformers import small_config
from tiny_training import TinyTransformer, fit_shards, training_model

from t2t_relpos.attention import dispatch
from t2t_relpos.models import Transformer
from trainer.training.compiled_steps import xla_error
from trainer.training.strategy import make_strategy

CONFIG = small_config()
CASES = {
    "Transformer": {},
    "micro-batches": {"transformer": TinyTransformer, "device_tokens": 16, "clip_norm": 1.0},
    "float16": {"transformer": TinyTransformer, "dtype": "mixed_float16", "device_tokens": 16},
    "dropout in bfloat16": {
        "transformer": TinyTransformer,
        "dropout": 0.5,
        "device_tokens": 16,
        "dtype": "mixed_bfloat16",
    },
}


def batches():
    """Returns batches of two shapes with an even number of rows, of which the last is padding."""
    generator = np.random.default_rng(3)
    made = []
    for rows, length in ((4, 5), (6, 8)):
        batch = {s: generator.integers(2, 13, (rows, length)) for s in ("inputs", "targets")}
        for ids in batch.values():
            ids[-1] = 0
        made.append({side: ids.astype("int32") for side, ids in batch.items()})
    return made


def train(strategy, options, transformer=None, **settings):
    """Returns the model and the logs of four steps."""
    make = transformer or (lambda: Transformer(CONFIG))
    with strategy.scope():
        model = training_model(make, options=options, rate=0.1, **settings)
        if model.loss_scale:
            model.loss_scale.scale.assign(2.0**10)
    return model, fit_shards(strategy, model, batches(), 4)


@contextlib.contextmanager
def recorded_calls():
    """Yields a list of (XLA, query length, key length) of the calls of attention in the block."""
    calls, select = [], dispatch.select

    def recording_select(call, implementation=None):
        calls.append((call.xla, call.length_q, call.length_k))
        return select(call, implementation)

    dispatch.select = recording_select
    yield calls
    dispatch.select = select


def compare(strategy, settings):
    found = {}
    _, found["one"] = train(tf.distribute.get_strategy(), {"run_eagerly": True}, **settings)
    with recorded_calls() as calls:
        options = {"run_eagerly": False, "jit_compile": True}
        model, found["xla"] = train(strategy, options, **settings)
    found["calls"] = sorted(set(calls))
    compiled = model._compute._compiled
    found["traces"] = [function.experimental_get_tracing_count() for function in compiled.values()]
    found["devices"] = [strategy.extended.worker_devices[replica] for replica in compiled]
    found["resources"] = [
        [
            [tensor.device for tensor in program.captured_inputs if tensor.dtype == tf.resource]
            for program in function._list_all_concrete_functions()
        ]
        for function in compiled.values()
    ]
    found["variables"] = len(model.transformer.variables)
    found["states"] = [
        [local.numpy().tolist() for local in strategy.experimental_local_results(state.value)]
        for state in model.transformer.non_trainable_variables
    ]
    return found


def main():
    strategy = make_strategy("mirrored", logical_devices=2)
    found = {"xla_error": xla_error(strategy)}
    for case, settings in CASES.items():
        found[case] = compare(strategy, settings)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
