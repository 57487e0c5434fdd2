import keras
import numpy as np
import pytest
import tensorflow as tf
from comparisons import assert_all_close, assert_all_equal
from small_transformers import small_config

from t2t_relpos.models import Transformer
from trainer.training.projected_loss import projected_cross_entropy
from trainer.training.training_model import TrainingModel

VOCABULARY = 13
BATCH = {
    "inputs": np.array([[5, 7, 3, 1, 0], [8, 1, 0, 0, 0], [4, 4, 6, 2, 1]], "int32"),
    "targets": np.array([[9, 3, 1], [2, 1, 0], [1, 0, 0]], "int32"),
}


def small_transformer(**settings):
    return Transformer(small_config(vocab_size=VOCABULARY, **settings))


def small_model(dropout=0.0, label_smoothing=0.1, device_tokens=None, clip_norm=None, **settings):
    keras.utils.set_random_seed(7)
    model = TrainingModel(
        small_transformer(dropout=dropout), label_smoothing, device_tokens, clip_norm
    )
    model.compile(keras.optimizers.SGD(1.0), **{"run_eagerly": True} | settings)
    return model


def as_dataset(*batches):
    return (
        tf.data.Dataset.from_tensors(batches[0])
        if len(batches) == 1
        else tf.data.Dataset.from_tensor_slices(batches)
    )


def expected_loss(model, label_smoothing):
    # Compute logits from `states`: float32 sums in a call of the model are rounded differently.
    # tests/models/test_transformer.py compares the two in float64.
    logits = model.transformer.output_embedding(model.transformer.states(BATCH), reverse=True)
    losses, correct = projected_cross_entropy(
        tf.constant(BATCH["targets"]), logits, tf.eye(VOCABULARY), label_smoothing
    )
    return tf.reduce_sum(losses) / 6, float(tf.reduce_sum(correct)) / 6


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_step_applies_the_gradient_of_the_mean_over_tokens(run_eagerly):
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
        np.testing.assert_allclose(
            start - variable.numpy(), gradient, rtol=1e-5, atol=1e-7, err_msg=variable.path
        )


def test_evaluation_has_no_label_smoothing_and_no_dropout():
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
    first, second = (
        small_model(dropout=rate).fit(as_dataset(BATCH), verbose=0, shuffle=False)
        for rate in (0.0, 0.5)
    )
    assert first.history["loss"] != second.history["loss"]


@pytest.mark.slow
def test_steps_per_execution_does_not_change_results():
    histories, weights = [], []
    for steps_per_execution in (1, 2):
        model = small_model(run_eagerly=False, steps_per_execution=steps_per_execution)
        data = as_dataset(BATCH).repeat()
        histories.append(
            model.fit(data, steps_per_epoch=4, epochs=2, verbose=0, shuffle=False).history
        )
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
    assert_all_equal(before, model.get_weights())


@pytest.mark.parametrize("tied", [True, False])
def test_gradient_of_the_embedding_table(tied):
    """The gradient of a tied table has a sparse and a dense part."""
    keras.utils.set_random_seed(7)
    model = TrainingModel(small_transformer(dropout=0.0, tie_embeddings=tied))
    model.compile(keras.optimizers.SGD(1.0))
    table = model.transformer.output_embedding.embeddings
    before = table.numpy()
    with tf.GradientTape() as tape:
        loss, _ = expected_loss(model, 0.0)
    expected = tf.convert_to_tensor(tape.gradient(loss, table.value))
    model.fit(as_dataset(BATCH), verbose=0, shuffle=False)
    np.testing.assert_allclose(before - table.numpy(), expected, rtol=1e-5, atol=1e-7)


def gradients_of_a_step(batch, **settings):
    """Returns the change of the weights in one step with a learning rate of 1, and its logs."""
    model = small_model(**settings)
    before = [variable.numpy() for variable in model.transformer.trainable_variables]
    history = model.fit(as_dataset(batch), verbose=0, shuffle=False).history
    return [
        start - variable.numpy()
        for start, variable in zip(before, model.transformer.trainable_variables)
    ], history


@pytest.fixture(scope="module")
def wide_batch():
    """Returns a batch of seven entries, one of which has no target."""
    generator = np.random.default_rng(5)
    batch = {
        "inputs": generator.integers(2, VOCABULARY, (7, 5)),
        "targets": generator.integers(2, VOCABULARY, (7, 3)),
    }
    batch["targets"][1, 1:] = batch["targets"][4] = 0
    return {side: ids.astype("int32") for side, ids in batch.items()}


@pytest.fixture(scope="module")
def one_batch(wide_batch):
    """Returns the gradients and the history of a step without micro-batches."""
    return gradients_of_a_step(wide_batch)


@pytest.mark.parametrize(
    "run_eagerly, device_tokens", [(False, 11), (True, 1), (True, 15), (True, 100)]
)
def test_micro_batches_do_not_change_gradients(wide_batch, one_batch, run_eagerly, device_tokens):
    found, history = gradients_of_a_step(
        wide_batch, run_eagerly=run_eagerly, device_tokens=device_tokens
    )
    for name, values in one_batch[1].items():
        np.testing.assert_allclose(history[name], values, rtol=1e-6, err_msg=name)
    assert_all_close(found, one_batch[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [0, 1])
def test_micro_batches_of_small_batches(wide_batch, rows):
    few = {side: ids[:rows] for side, ids in wide_batch.items()}
    found, history = gradients_of_a_step(few, device_tokens=7)
    expected, expected_history = gradients_of_a_step(few)
    assert history["target_tokens"] == [3 * rows]
    np.testing.assert_allclose(history["loss"], expected_history["loss"], rtol=1e-6)
    assert_all_close(found, expected, rtol=1e-5, atol=1e-7)


def test_micro_batches_have_different_dropout():
    row = {side: ids[:1] for side, ids in BATCH.items()}
    twice = {side: np.repeat(ids, 2, axis=0) for side, ids in row.items()}
    one, two = (
        gradients_of_a_step(batch, dropout=0.5, device_tokens=5)[1]["loss"][0]
        for batch in (row, twice)
    )
    # With a shared mask, the mean loss of two equal entries would equal that of one.
    assert two != pytest.approx(one, rel=1e-3)


def test_random_states_do_not_depend_on_micro_batches():
    found = []
    for device_tokens in (None, 5, 10):
        model = small_model(dropout=0.5, device_tokens=device_tokens)
        model.fit(as_dataset(BATCH), verbose=0, shuffle=False)
        found.append([v.numpy() for v in model.transformer.non_trainable_variables])
    assert len(found[0]) > 3
    for states in found[1:]:
        np.testing.assert_array_equal(states, found[0])


def test_gradient_norm_of_the_last_step_is_logged():
    gradients, history = gradients_of_a_step(BATCH)
    assert history["gradient_norm"] == [
        pytest.approx(np.sqrt(sum(np.sum(g**2) for g in gradients)), rel=1e-5)
    ]


@pytest.mark.parametrize("fraction", [0.5, 2.0])
def test_gradients_are_clipped_by_their_global_norm(fraction):
    gradients, history = gradients_of_a_step(BATCH)
    norm = history["gradient_norm"][0]
    clipped, clipped_history = gradients_of_a_step(BATCH, clip_norm=fraction * norm)
    assert clipped_history["gradient_norm"] == [pytest.approx(norm)]
    for one, other in zip(clipped, gradients):
        np.testing.assert_allclose(one, other * min(fraction, 1.0), rtol=1e-5, atol=1e-7)


def test_gradient_of_zero_is_not_clipped():
    empty = BATCH | {"targets": np.zeros_like(BATCH["targets"])}
    gradients, history = gradients_of_a_step(empty, clip_norm=1.0)
    assert history["gradient_norm"] == [0] and not any(np.any(gradient) for gradient in gradients)
