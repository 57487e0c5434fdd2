"""Tests of the training loss from states and table, compared with a loss of dense targets."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.training.label_smoothed_cross_entropy import label_smoothed_cross_entropy

BATCH, LENGTH, WIDTH, VOCABULARY = 3, 5, 7, 11


@pytest.fixture
def labels():
    return tf.constant(np.random.default_rng(7).integers(0, VOCABULARY, (BATCH, LENGTH)), tf.int32)


@pytest.fixture
def arrays():
    """Returns decoder states and an embedding table."""
    rng = np.random.default_rng(13)
    shapes = (BATCH, LENGTH, WIDTH), (VOCABULARY, WIDTH)
    return [tf.constant(rng.normal(0, 2, shape)) for shape in shapes]


def from_logits(labels, states, table, label_smoothing):
    """Returns losses and correct tokens by definition, with a dense matrix of targets."""
    logits = tf.einsum("btd,vd->btv", states, table)
    low = label_smoothing / (table.shape[0] - 1)
    targets = tf.one_hot(
        labels, table.shape[0], on_value=1 - label_smoothing, off_value=low, dtype=logits.dtype
    )
    losses = tf.nn.softmax_cross_entropy_with_logits(labels=targets, logits=logits)
    losses -= -tf.reduce_sum(tf.math.xlogy(targets, targets), axis=-1)
    correct = tf.cast(tf.argmax(logits, -1, labels.dtype) == labels, logits.dtype)
    weights = tf.cast(labels != 0, logits.dtype)
    return losses * weights, correct * weights


def values_and_gradients(function, labels, arrays, label_smoothing=0.0):
    """Returns losses, correct tokens, and the gradients of a weighted sum of the losses."""
    weights = tf.constant(np.random.default_rng(17).normal(size=tuple(labels.shape)))
    with tf.GradientTape() as tape:
        tape.watch(arrays)
        losses, correct = function(labels, *arrays, label_smoothing)
        total = tf.reduce_sum(losses * tf.cast(weights, losses.dtype))
    return [losses, correct, *tape.gradient(total, arrays)]


@pytest.mark.parametrize(
    ("label_smoothing", "mode"),
    [(0.0, "eager"), (0.1, "eager"), (0.37, "eager"), (0.1, "graph"), (0.0, "XLA"), (0.37, "XLA")],
)
def test_loss_and_gradients_equal_dense_targets(labels, arrays, label_smoothing, mode):
    """Without XLA, padded states may be nan, and get a gradient of 0."""
    assert 0 in labels.numpy()
    expected = values_and_gradients(from_logits, labels, arrays, label_smoothing)
    compute, (states, table) = values_and_gradients, arrays
    if mode != "eager":
        compute = tf.function(compute, jit_compile=mode == "XLA")
    if mode != "XLA":
        states = tf.where((labels == 0)[..., None], tf.cast(float("nan"), states.dtype), states)
    received = compute(label_smoothed_cross_entropy, labels, [states, table], label_smoothing)
    for one, other in zip(received, expected, strict=True):
        assert one.dtype == tf.float64
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "dtype, tolerance", [("float32", 1e-6), ("bfloat16", 2e-2), ("float16", 2e-3)]
)
def test_loss_and_gradients_of_other_dtypes(labels, arrays, dtype, tolerance):
    """The tolerance is relative to the largest value of each array, computed in float64."""
    narrow = [tf.cast(array, dtype) for array in arrays]
    expected = values_and_gradients(
        from_logits, labels, [tf.cast(array, tf.float64) for array in narrow], 0.1
    )
    received = values_and_gradients(label_smoothed_cross_entropy, labels, narrow, 0.1)
    assert [value.dtype.name for value in received] == ["float32", "float32", dtype, dtype]
    for one, other in zip(received, expected, strict=True):
        scale = float(tf.reduce_max(tf.abs(other)))
        np.testing.assert_allclose(tf.cast(one, tf.float64), other, rtol=0, atol=tolerance * scale)


def test_loss_is_finite_if_the_probability_underflows():
    states, table = tf.constant([[[1e4]]]), tf.constant([[1.0], [-1.0], [0.0]])
    with tf.GradientTape() as tape:
        tape.watch([states, table])
        losses, correct = label_smoothed_cross_entropy(tf.constant([[1]]), states, table)
    to_states, to_table = (x.numpy() for x in tape.gradient(losses, [states, table]))
    assert losses.numpy().tolist() == [[2e4]] and correct.numpy().tolist() == [[0.0]]
    assert to_states.tolist() == [[[2.0]]] and to_table.tolist() == [[1e4], [-1e4], [0.0]]


@pytest.mark.parametrize("gap", [20.0, 65.0, 75.0, 95.0, 120.0])
def test_loss_of_small_probabilities(gap):
    """Probabilities range from normal float32 numbers to underflow."""
    states, table = tf.constant([[[gap], [0.7]]]), tf.constant([[0.0], [1.0], [0.31], [-0.17]])
    losses, correct = label_smoothed_cross_entropy(tf.constant([[2, 1]]), states, table)
    wide = (tf.cast(x, tf.float64) for x in (states, table))
    expected, _ = from_logits(tf.constant([[2, 1]]), *wide, 0.0)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    assert correct.numpy().tolist() == [[0.0, 1.0]]
    small, _ = label_smoothed_cross_entropy(tf.constant([[3]]), states[:, :1], table)
    np.testing.assert_allclose(small, [[1.17 * gap]], rtol=1e-6)


@pytest.mark.parametrize("rows", [0, BATCH])
def test_loss_of_batches_without_tokens(arrays, rows):
    """A batch is empty, or has padding only."""
    states, table = arrays
    labels = tf.zeros([rows, LENGTH], tf.int32)
    found = values_and_gradients(label_smoothed_cross_entropy, labels, [states[:rows], table], 0.1)
    assert found[0].shape == found[1].shape == labels.shape
    for nothing in found:
        np.testing.assert_array_equal(nothing, np.zeros(nothing.shape))


def test_softmax_is_the_only_pass_over_the_logits(labels, arrays):
    """There is no subtraction, product or sum of tensors with the shape of the logits."""
    traced = tf.function(values_and_gradients).get_concrete_function(
        label_smoothed_cross_entropy, labels, arrays, 0.1
    )
    large = {
        operation.type
        for operation in traced.graph.get_operations()
        for output in operation.outputs
        if output.shape.rank == 2 and output.shape[1] == VOCABULARY
    }
    assert {"MatMul", "Softmax"} <= large <= {"MatMul", "Softmax", "Identity", "IdentityN"}
