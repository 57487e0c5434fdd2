"""Tests of the train function that compiles a program for every shape."""

import functools

import pytest
import tensorflow as tf
from comparisons import assert_all_close
from small_transformers import small_config
from tiny_training import TinyTransformer, training_model

from t2t_relpos.models import Transformer
from trainer.training.compiled_steps import CompiledStep

TRANSFORMER = functools.partial(Transformer, small_config())


def batches(*lengths):
    return [{side: tf.ones([2, n], tf.int32) for side in ("inputs", "targets")} for n in lengths]


def test_compiled_step_traces_static_shapes_and_reports_new_ones():
    traced = []

    def train_step(batch):
        traced.append(batch["inputs"].shape.as_list())
        return {"loss": tf.reduce_sum(batch["targets"])}

    step = CompiledStep(train_step)
    logs = [step(iter([batch])) for batch in batches(5, 7, 5)]
    assert traced == [[2, 5], [2, 7]]
    assert [int(each["loss"]) for each in logs] == [10, 14, 10]
    assert [each.get("programs") for each in logs] == [1, 2, None]
    assert all(each["compile_seconds"] > 0 for each in logs[:2])
    assert "compile_seconds" not in logs[2]


@pytest.mark.parametrize(
    "transformer",
    [TinyTransformer, pytest.param(TRANSFORMER, marks=pytest.mark.slow)],
    ids=["one layer", "Transformer"],
)
def test_compiled_training_equals_eager(transformer, rng):
    data = [
        {side: rng.integers(2, 13, (3, n)).astype("int32") for side in ("inputs", "targets")}
        for n in (5, 8, 5, 8)
    ]
    specification = {side: tf.TensorSpec([None, None], tf.int32) for side in ("inputs", "targets")}
    dataset = tf.data.Dataset.from_generator(lambda: data, output_signature=specification)

    def train(jit_compile):
        options = {"jit_compile": jit_compile, "run_eagerly": not jit_compile}
        settings = {"rate": 0.5, "device_tokens": 20, "clip_norm": 1.0, "options": options}
        model = training_model(transformer, **settings)
        fit = lambda: model.fit(dataset, steps_per_epoch=4, shuffle=False, verbose=0).history
        logs = [list(fit().values()) for _ in range(2)]
        assert isinstance(model.train_function, CompiledStep) == model.jit_compile == jit_compile
        assert int(model.optimizer.iterations) == 8
        return logs, model.get_weights()

    (logs, weights), (expected, expected_weights) = train(True), train(False)
    assert_all_close(logs, expected, rtol=1e-5)
    assert_all_close(weights, expected_weights, rtol=1e-5, atol=1e-6)
