"""Tests of the train function that compiles a program for every shape."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_transformers import small_config

from t2t_relpos.models import Transformer
from trainer.training.compiled_step import CompiledStep
from trainer.training.training_model import TrainingModel


def batches(*lengths):
    return [
        {"inputs": tf.ones([2, n], tf.int32), "targets": tf.ones([2, n], tf.int32)} for n in lengths
    ]


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


def test_compiled_step_runs_several_steps_per_call():
    step = CompiledStep(lambda batch: {"loss": tf.reduce_sum(batch["targets"])}, steps=3)
    iterator = iter(batches(5, 7, 5, 7))
    logs = step(iterator)
    assert int(logs["loss"]) == 10 and logs["programs"] == 2
    assert len(list(iterator)) == 1


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_compiled_training_equals_uncompiled(steps_per_execution, rng):
    config = small_config()
    data = [
        {side: rng.integers(2, 13, (3, n)).astype("int32") for side in ("inputs", "targets")}
        for n in (5, 8, 5, 8)
    ]
    specification = {side: tf.TensorSpec([None, None], tf.int32) for side in ("inputs", "targets")}
    dataset = tf.data.Dataset.from_generator(lambda: data, output_signature=specification)
    losses = []
    for jit_compile in (False, True):
        keras.utils.set_random_seed(7)
        model = TrainingModel(Transformer(config))
        options = {"steps_per_execution": steps_per_execution, "jit_compile": jit_compile}
        model.compile(keras.optimizers.SGD(0.5), **options)
        fit = lambda: model.fit(dataset, steps_per_epoch=4, shuffle=False, verbose=0)
        losses.append([fit().history["loss"] for _ in range(2)])
        assert isinstance(model.train_function, CompiledStep) == jit_compile
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
