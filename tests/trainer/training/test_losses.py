import numpy as np
import pytest
import tensorflow as tf

from trainer.training.losses import token_cross_entropy

BATCH, LENGTH, VOCABULARY = 3, 5, 11


def dense_losses(labels, logits, label_smoothing):
    """The definition: a dense matrix of targets."""
    low = label_smoothing / (VOCABULARY - 1)
    targets = tf.one_hot(
        labels, VOCABULARY, on_value=1 - label_smoothing, off_value=low, dtype=logits.dtype
    )
    losses = tf.nn.softmax_cross_entropy_with_logits(labels=targets, logits=logits)
    entropy = -tf.reduce_sum(tf.math.xlogy(targets, targets), axis=-1)
    return (losses - entropy) * tf.cast(labels != 0, logits.dtype)


@pytest.fixture
def labels():
    return tf.constant(np.random.default_rng(7).integers(0, VOCABULARY, (BATCH, LENGTH)), tf.int32)


@pytest.fixture
def logits():
    return tf.constant(
        np.random.default_rng(13).normal(0, 3, (BATCH, LENGTH, VOCABULARY)), tf.float64
    )


def value_and_gradient(function, labels, logits, label_smoothing):
    weights = tf.constant(np.random.default_rng(17).normal(size=(BATCH, LENGTH)))
    with tf.GradientTape() as tape:
        tape.watch(logits)
        losses = function(labels, logits, label_smoothing)
        losses = losses[0] if isinstance(losses, tuple) else losses
        total = tf.reduce_sum(losses * weights)
    return losses, tape.gradient(total, logits)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.37])
@pytest.mark.parametrize(
    "compile_with", [tf.function, lambda function: function], ids=["graph", "eager"]
)
def test_equals_dense_targets(labels, logits, label_smoothing, compile_with):
    assert 0 in labels.numpy()
    expected = value_and_gradient(dense_losses, labels, logits, label_smoothing)
    received = compile_with(value_and_gradient)(
        token_cross_entropy, labels, logits, label_smoothing
    )
    np.testing.assert_allclose(received[0], expected[0], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(received[1], expected[1], rtol=1e-12, atol=1e-13)


def test_padding_has_neither_loss_nor_gradient(labels, logits):
    losses, gradient = value_and_gradient(token_cross_entropy, labels, logits, 0.1)
    padded = labels.numpy() == 0
    assert not losses.numpy()[padded].any()
    assert not gradient.numpy()[padded].any()
    assert losses.numpy()[~padded].all()


def test_smallest_loss_is_zero():
    low = 0.1 / (VOCABULARY - 1)
    best = np.full((1, 1, VOCABULARY), np.log(low))
    best[0, 0, 4] = np.log(0.9)
    losses, _ = token_cross_entropy(tf.constant([[4]]), tf.constant(best), 0.1)
    assert abs(float(losses[0, 0])) < 1e-14


def test_large_logits_stay_finite():
    logits = tf.constant([[[1e4, -1e4, 0.0]]])
    losses, _ = token_cross_entropy(tf.constant([[1]]), logits)
    assert float(losses[0, 0]) == 2e4


def test_right_tokens(labels, logits):
    _, right = token_cross_entropy(labels, logits)
    expected = (np.argmax(logits, -1) == labels.numpy()) & (labels.numpy() != 0)
    np.testing.assert_array_equal(right, expected.astype(float))
    _, all_right = token_cross_entropy(labels, tf.one_hot(labels, VOCABULARY))
    np.testing.assert_array_equal(all_right, (labels.numpy() != 0).astype(float))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_types_of_16_bits_are_summed_in_float32(labels, logits, dtype):
    narrow = tf.cast(logits, dtype)
    losses, _ = token_cross_entropy(labels, narrow, 0.1)
    assert losses.dtype == tf.float32
    np.testing.assert_allclose(
        losses, dense_losses(labels, tf.cast(narrow, tf.float64), 0.1), rtol=1e-5, atol=1e-6
    )


def test_no_rows():
    losses, right = token_cross_entropy(
        tf.zeros([0, LENGTH], tf.int32), tf.zeros([0, LENGTH, VOCABULARY]), 0.1
    )
    assert losses.shape == right.shape == (0, LENGTH)


def test_graph_holds_no_one_hot(labels, logits):
    graph = (
        tf.function(value_and_gradient)
        .get_concrete_function(token_cross_entropy, labels, logits, 0.1)
        .graph
    )
    assert "OneHot" not in {operation.type for operation in graph.get_operations()}


@pytest.mark.parametrize("label_smoothing", [-0.1, 1.0])
def test_smoothing_out_of_range(labels, logits, label_smoothing):
    with pytest.raises(
        ValueError, match=f"Expected label_smoothing to be .* below 1. Received: {label_smoothing}"
    ):
        token_cross_entropy(labels, logits, label_smoothing)
