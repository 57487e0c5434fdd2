import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from t2t_relpos.models import Transformer, TransformerConfig
from trainer.training.losses import token_cross_entropy
from trainer.training.training_model import TrainingModel

VOCABULARY = 13
BATCH = {
    "inputs": np.array([[5, 7, 3, 1, 0], [8, 1, 0, 0, 0], [4, 4, 6, 2, 1]], "int32"),
    "targets": np.array([[9, 3, 1], [2, 1, 0], [1, 0, 0]], "int32"),
}


def small_transformer(dropout=0.0):
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
    return Transformer(TransformerConfig(vocab_size=VOCABULARY, dropout=dropout, **sizes))


def small_model(dropout=0.0, label_smoothing=0.1, run_eagerly=True, **settings):
    keras.utils.set_random_seed(7)
    model = TrainingModel(small_transformer(dropout), label_smoothing=label_smoothing)
    model.compile(keras.optimizers.SGD(1.0), run_eagerly=run_eagerly, **settings)
    return model


def as_dataset(*batches):
    return tf.data.Dataset.from_tensors(batches[0]) if len(batches) == 1 else tf.data.Dataset.from_tensor_slices(batches)


def expected_loss(model, label_smoothing):
    losses, right = token_cross_entropy(tf.constant(BATCH["targets"]), model.transformer(BATCH), label_smoothing)
    return tf.reduce_sum(losses) / 6, float(tf.reduce_sum(right)) / 6


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_step_follows_the_gradient_of_the_mean_over_tokens(run_eagerly):
    model = small_model(run_eagerly=run_eagerly)
    with tf.GradientTape() as tape:
        loss, accuracy = expected_loss(model, 0.1)
    gradients = tape.gradient(loss, model.transformer.trainable_variables)
    before = [variable.numpy() for variable in model.transformer.trainable_variables]
    history = model.fit(as_dataset(BATCH), verbose=0, shuffle=False).history
    assert history["loss"] == [pytest.approx(float(loss), rel=1e-6)]
    assert history["accuracy"] == [pytest.approx(accuracy)]
    assert (history["target_tokens"], history["tokens"]) == ([6], [17])
    for start, variable, gradient in zip(before, model.transformer.trainable_variables, gradients):
        np.testing.assert_allclose(start - variable.numpy(), gradient, rtol=1e-5, atol=1e-7, err_msg=variable.path)


def test_evaluation_has_neither_smoothing_nor_dropout():
    model = small_model(dropout=0.5)
    loss, accuracy = expected_loss(model, 0.0)
    for _ in range(2):
        found = model.evaluate(as_dataset(BATCH), verbose=0, return_dict=True)
        assert found == {
            "loss": pytest.approx(float(loss), rel=1e-6),
            "accuracy": pytest.approx(accuracy),
            "tokens": 17,
            "target_tokens": 6,
        }


def test_training_has_dropout():
    first, second = (small_model(dropout=rate).fit(as_dataset(BATCH), verbose=0, shuffle=False) for rate in (0.0, 0.5))
    assert first.history["loss"] != second.history["loss"]


def test_elements_may_be_tuples():
    labels = BATCH["targets"]
    triple = tf.data.Dataset.from_tensors((BATCH, labels, (labels != 0).astype("float32")))
    histories = [small_model().fit(data, verbose=0, shuffle=False).history for data in (as_dataset(BATCH), triple)]
    assert histories[0] == histories[1]


def test_several_steps_in_one_execution_are_the_same_steps():
    histories, weights = [], []
    for steps_per_execution in (1, 2):
        model = small_model(run_eagerly=False, steps_per_execution=steps_per_execution)
        data = as_dataset(BATCH).repeat()
        histories.append(model.fit(data, steps_per_epoch=4, epochs=2, verbose=0, shuffle=False).history)
        weights.append(model.get_weights())
        assert int(model.optimizer.iterations) == 8
    for name, values in histories[0].items():
        np.testing.assert_allclose(histories[1][name], values, rtol=1e-5, err_msg=name)
    for one, two in zip(*weights):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


def test_batch_without_target_tokens_changes_nothing():
    model = small_model()
    before = model.get_weights()
    empty = BATCH | {"targets": np.zeros_like(BATCH["targets"])}
    history = model.fit(as_dataset(empty), verbose=0, shuffle=False).history
    assert (history["loss"], history["accuracy"], history["tokens"]) == ([0], [0], [11])
    for one, two in zip(before, model.get_weights()):
        np.testing.assert_array_equal(one, two)


class TiedByLookup(keras.Model):
    """Its table has a gradient of slices and a dense one."""

    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(VOCABULARY, 5)

    def call(self, inputs, training=False):
        source = keras.ops.mean(self.table(inputs["inputs"]), axis=1, keepdims=True)
        return keras.ops.matmul(source + self.table(inputs["targets"]), keras.ops.transpose(self.table.embeddings))


def test_gradient_of_slices_becomes_dense():
    model = TrainingModel(TiedByLookup())
    model.compile(keras.optimizers.SGD(1.0))
    table = model.transformer.table.embeddings
    before = table.numpy()
    with tf.GradientTape() as tape:
        loss, _ = expected_loss(model, 0.0)
    expected = tf.convert_to_tensor(tape.gradient(loss, table.value))
    model.fit(as_dataset(BATCH), verbose=0, shuffle=False)
    np.testing.assert_allclose(before - table.numpy(), expected, rtol=1e-5, atol=1e-7)


@pytest.fixture(scope="module")
def on_two_devices_and_one(tmp_path_factory):
    directory = tmp_path_factory.mktemp("replicas")
    program = pathlib.Path(__file__).parent / "two_replicas.py"
    files = [directory / "two.npz", directory / "one.npz"]
    subprocess.run([sys.executable, str(program), *map(str, files)], check=True, env=environment())
    return [dict(np.load(file)) for file in files]


def environment():
    root = pathlib.Path(__file__).parents[3]
    return os.environ | {"PYTHONPATH": str(root), "TF_CPP_MIN_LOG_LEVEL": "3"}


@pytest.mark.parametrize("part", ["batch 0", "batch 1", "batch 2", "20 steps", "evaluate"])
def test_two_replicas_have_the_loss_and_gradients_of_one(on_two_devices_and_one, part):
    two, one = on_two_devices_and_one
    assert two.keys() == one.keys()
    names = [name for name in one if name.startswith(part)]
    assert f"{part} loss" in names
    for name in names:
        np.testing.assert_allclose(two[name], one[name], rtol=2e-5, atol=2e-6, err_msg=name)


def test_batches_of_the_replicas_are_what_the_test_is_about(on_two_devices_and_one):
    _, one = on_two_devices_and_one
    assert [float(one[f"batch {i} target_tokens"][0]) for i in range(3)] == [14, 10, 3]
