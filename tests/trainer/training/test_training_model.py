import numpy as np
import pytest
import tensorflow as tf
from comparisons import assert_all_close, assert_all_equal
from small_transformers import small_config
from tiny_training import BATCH, VOCABULARY, TinyTransformer, fit, training_model

from t2t_relpos.models import Transformer
from trainer.training.label_smoothed_cross_entropy import label_smoothed_cross_entropy
from trainer.training.training_model import Longest

# The rounding of a difference of two float32 weights, which are below 4 in all tests.
ROUNDING = 4 * np.finfo("float32").eps
EMPTY = BATCH | {"targets": np.zeros_like(BATCH["targets"])}


def expected_loss(model, label_smoothing):
    # Compute logits from `states`: float32 sums in a call of the model are rounded differently.
    # tests/models/test_transformer.py compares the two in float64.
    table = tf.convert_to_tensor(model.transformer.output_embedding.embeddings)
    logits = tf.einsum("btd,vd->btv", model.transformer.states(BATCH), table)
    losses, correct = label_smoothed_cross_entropy(
        tf.constant(BATCH["targets"]), logits, tf.eye(VOCABULARY), label_smoothing
    )
    return tf.reduce_sum(losses) / 6, float(tf.reduce_sum(correct)) / 6


@pytest.mark.parametrize(
    "transformer",
    [TinyTransformer, lambda: TinyTransformer(tied=False), lambda: Transformer(small_config())],
    ids=["tied", "untied", "Transformer"],
)
def test_step_applies_the_gradient_of_the_mean_over_tokens(transformer):
    """The gradient of a tied embedding table has a sparse and a dense part."""
    model = training_model(transformer)
    with tf.GradientTape() as tape:
        loss, accuracy = expected_loss(model, 0.1)
    variables = model.transformer.trainable_variables
    gradients = tape.gradient(loss, [variable.value for variable in variables])
    before = [variable.numpy() for variable in variables]
    history = fit(model)
    assert history["loss"] == [pytest.approx(float(loss), rel=1e-6)]
    assert history["accuracy"] == [pytest.approx(accuracy)]
    assert (history["target_tokens"], history["tokens"]) == ([6], [17])
    for start, variable, gradient in zip(before, variables, gradients):
        np.testing.assert_allclose(
            start - variable.numpy(),
            tf.convert_to_tensor(gradient),
            rtol=1e-5,
            atol=ROUNDING,
            err_msg=variable.path,
        )


def test_size_of_the_graphs():
    """One block each of encoder and decoder. Tracing the graphs takes most of a run's first minute.

    Branches would be for implementations of attention for other lengths.
    """
    model = training_model(lambda: Transformer(small_config()))
    model.longest = Longest(103, 103)
    spec = {name: tf.TensorSpec((None, None), tf.int32) for name in BATCH}
    for step, most in ((model.train_step, 3100), (model.test_step, 1150)):
        operations = tf.function(step).get_concrete_function(spec).graph.get_operations()
        branches = [x.name for x in operations if x.type in ("If", "StatelessIf")]
        assert len(branches) <= 1, "of the cross-entropy"
        assert len(operations) <= most, step


def test_evaluation_has_no_label_smoothing_and_no_dropout():
    model = training_model(dropout=0.5)
    loss, accuracy = expected_loss(model, 0.0)
    for _ in range(2):
        data = tf.data.Dataset.from_tensors(BATCH)
        assert model.evaluate(data, verbose=0, return_dict=True) == {
            "loss": pytest.approx(float(loss), rel=1e-6),
            "accuracy": pytest.approx(accuracy),
            "tokens": 17,
            "target_tokens": 6,
        }


def gradients_of_a_step(batch, **settings):
    """Returns the change of the weights in one step with a learning rate of 1, and its logs."""
    model = training_model(**settings)
    before = [variable.numpy() for variable in model.transformer.trainable_variables]
    history = fit(model, batch)
    return [
        start - variable.numpy()
        for start, variable in zip(before, model.transformer.trainable_variables)
    ], history


def test_batch_without_target_tokens_changes_nothing():
    gradients, history = gradients_of_a_step(EMPTY, clip_norm=1.0)
    assert (history["loss"], history["accuracy"], history["tokens"]) == ([0], [0], [11])
    assert history["gradient_norm"] == [0] and not any(np.any(gradient) for gradient in gradients)


@pytest.mark.parametrize(
    ("rows", "device_tokens", "run_eagerly"),
    [
        (7, 11, False),
        (7, 1, True),
        (7, 15, True),
        (7, 100, True),
        (0, 7, True),
        (1, 7, True),
    ],
)
def test_micro_batches_do_not_change_gradients(rng, rows, device_tokens, run_eagerly):
    batch = {"inputs": rng.integers(2, 13, (7, 5)), "targets": rng.integers(2, 13, (7, 3))}
    batch["targets"][1, 1:] = batch["targets"][4] = 0
    batch = {side: ids[:rows].astype("int32") for side, ids in batch.items()}
    expected, full = gradients_of_a_step(batch)
    assert full["target_tokens"] == [np.count_nonzero(batch["targets"])]
    found, history = gradients_of_a_step(
        batch, device_tokens=device_tokens, options={"run_eagerly": run_eagerly}
    )
    assert history.keys() == full.keys()
    for name, values in full.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-6, err_msg=name)
    assert_all_close(found, expected, rtol=1e-5, atol=ROUNDING)


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
    for device_tokens in (None, 5, 10):
        model = training_model(dropout=0.5, device_tokens=device_tokens)
        (state,) = (variable.numpy() for variable in model.transformer.non_trainable_variables)
        fit(model)
        assert_all_equal(model.transformer.non_trainable_variables, [state + [0, 1]])


@pytest.mark.parametrize("fraction", [0.5, 2.0])
def test_gradients_are_clipped_by_their_global_norm(fraction):
    gradients, history = gradients_of_a_step(BATCH)
    norm = np.sqrt(sum(np.sum(gradient**2) for gradient in gradients))
    assert history["gradient_norm"] == [pytest.approx(norm, rel=1e-5)]
    clipped, clipped_history = gradients_of_a_step(BATCH, clip_norm=fraction * norm)
    assert clipped_history["gradient_norm"] == history["gradient_norm"]
    for one, other in zip(clipped, gradients):
        np.testing.assert_allclose(one, other * min(fraction, 1.0), rtol=1e-5, atol=ROUNDING)
