"""Compares `FoldedTransformer` with the Keras model, on every backend."""

import functools

import keras
import numpy as np
import pytest
from comparisons import assert_all_close
from keras import ops
from small_transformers import random_transformer, shared_transformer

from t2t_relpos.decoding.search import repeat_rows
from t2t_relpos.models.folded import FoldedTransformer, fold_weights
from t2t_relpos.models.folded.transformer import dense

VOCAB, BATCH, LENGTH, STEPS = 23, 5, 7, 6
SMALL = {
    "vocab_size": VOCAB,
    "num_decoder_layers": 2,
    "hidden_dim": 22,
    "intermediate_dim": 13,
    "num_heads": 2,
}
CONFIGS = {
    "relative": {"num_encoder_layers": 2, "num_decoder_layers": 3},
    "tables per head": {"share_heads": False, "relative_cross_attention": True},
    "one head, tables per head": {"share_heads": False, "num_heads": 1},
    "key tables only": {"use_value_table": False, "relative_cross_attention": True},
    "value tables only": {"use_key_table": False, "normalize_first": False},
    "K = 0": {"max_relative_position": 0},
    "K above length": {"max_relative_position": 17},
    "left and right": {"max_relative_position": (4, 1), "relative_cross_attention": True},
    "right only": {"max_relative_position": (0, 2), "relative_cross_attention": True},
    "sinusoidal, post-norm": {"position": "sinusoidal", "normalize_first": False},
    "relative and sinusoidal": {"position": "relative+sinusoidal", "target_space_id": 9},
    "learned": {"position": "learned", "tie_embeddings": False},
    "no positions": {"position": "none", "layer_norm_epsilon": 0.1},
}
SOURCE = np.random.default_rng(2).integers(2, VOCAB, size=(BATCH, LENGTH)).astype("int32")
SOURCE[1, 4:] = SOURCE[3, 1:] = 0
TARGETS = np.random.default_rng(3).integers(2, VOCAB, size=(BATCH, STEPS)).astype("int32")
TARGETS[2, 3:] = 0
on_configs = pytest.mark.parametrize("config", CONFIGS)


def make_model(config="relative"):
    return shared_transformer(0.3, **SMALL | CONFIGS[config])


def folded(model):
    return FoldedTransformer(model.config, fold_weights(model))


def survivors(beam_size, step):
    """Returns, for each hypothesis, the index of the one that it continues in the same sentence.

    Some hypotheses have no continuation, and some have several.
    """
    beams = np.random.default_rng(step).integers(beam_size, size=(BATCH, beam_size))
    return (beams + beam_size * np.arange(BATCH)[:, None]).ravel().astype("int32")


@functools.cache
def model_steps(config, beam_size):
    """Returns a list of (ids, logits of the model, `survivors`) of all steps."""
    targets, all_targets = np.zeros((BATCH * beam_size, STEPS), "int32"), []
    for number in range(STEPS):
        all_targets.append(targets)
        targets = targets[survivors(beam_size, number)]
        rng = np.random.default_rng(10 + number)
        targets[:, number] = rng.integers(1, VOCAB, size=len(targets))
    source = np.tile(np.repeat(SOURCE, beam_size, axis=0), (STEPS, 1))
    logits = make_model(config)({"inputs": source, "targets": np.concatenate(all_targets)})
    logits = ops.convert_to_numpy(logits).reshape(STEPS, BATCH * beam_size, STEPS, VOCAB)
    return [
        (ids[:, number - 1], logits[number, :, number], survivors(beam_size, number))
        for number, ids in enumerate(all_targets)
    ]


@pytest.mark.parametrize("growing", [True, False])
@pytest.mark.parametrize(
    "config, beam_size", [*((config, 3) for config in CONFIGS), ("tables per head", 1)]
)
def test_steps_equal_the_keras_model(config, beam_size, growing):
    state, step = folded(make_model(config)).start_search(SOURCE, STEPS, beam_size, growing=growing)
    state = repeat_rows(state, beam_size)
    for ids, expected, rows in model_steps(config, beam_size):
        logits, state = step(ops.convert_to_tensor(ids), state)
        np.testing.assert_allclose(logits, expected, atol=2e-5, rtol=2e-5)
        state = {**state, "ancestors": ops.take(state["ancestors"], rows, axis=0)}


@on_configs
def test_logits_scores_and_alignments_equal_the_keras_model(config):
    model = make_model(config)
    logits, _ = folded(model).logits_and_alignments(SOURCE, TARGETS)
    scores, alignments = folded(model).score(SOURCE, TARGETS, 0.6, return_alignments=True)
    expected = model({"inputs": SOURCE, "targets": TARGETS})
    np.testing.assert_allclose(logits, expected, atol=2e-5, rtol=2e-5)
    expected_scores, expected = model.score(SOURCE, TARGETS, 0.6, return_alignments=True)
    assert_all_close(scores, expected_scores, rtol=2e-5, atol=2e-5)
    assert_all_close(folded(model).score(SOURCE, TARGETS, 0.6), scores)
    np.testing.assert_allclose(alignments, expected, atol=2e-5)
    assert alignments.shape == (BATCH, STEPS, LENGTH)
    np.testing.assert_allclose(ops.sum(alignments, -1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(ops.convert_to_numpy(alignments)[1, :, 4:], 0.0)


@pytest.mark.parametrize("normalize_first", [True, False])
def test_each_normalization_has_its_epsilon(normalize_first):
    model = random_transformer(0.3, **SMALL, normalize_first=normalize_first)
    epsilons = iter(np.linspace(0.1, 20, 50).tolist())
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.LayerNormalization):
            layer.epsilon = next(epsilons)
    logits, _ = folded(model).logits_and_alignments(SOURCE, TARGETS)
    expected = model({"inputs": SOURCE, "targets": TARGETS})
    np.testing.assert_allclose(logits, expected, atol=2e-5, rtol=2e-5)


def test_bfloat16_kernels_change_logits_only_by_rounding_errors():
    model = make_model()
    weights = fold_weights(model, kernel_dtype="bfloat16")
    attention = dict(weights["decoder"][0]["self"])
    expected = {"input": "bfloat16", "output": "bfloat16"}
    expected |= dict.fromkeys(["input_bias", "key_table", "value_table"], "float32")
    attention.pop("epsilon")  # a number
    dtypes = {name: keras.backend.standardize_dtype(w.dtype) for name, w in attention.items()}
    assert dtypes == expected
    rounded = FoldedTransformer(model.config, weights)
    logits, _ = rounded.logits_and_alignments(SOURCE, TARGETS)
    expected, _ = folded(model).logits_and_alignments(SOURCE, TARGETS)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    error = ops.convert_to_numpy(ops.abs(logits - expected))
    # About ten products are rounded to the 8 bits of precision of bfloat16.
    assert 1e-4 < error.max() < 0.05 * ops.convert_to_numpy(ops.abs(expected)).max()


@pytest.mark.parametrize("kernel_dtype", ["float32", "bfloat16"])
def test_dense_rounds_inputs_and_products_to_the_dtype_of_the_kernel(kernel_dtype):
    rng = np.random.default_rng(5)
    x, kernel = (rng.choice([-4, -3, -2, -1, 1, 2, 3, 4], size) for size in ((3, 5), (5, 7)))
    x[0], kernel[:, 0] = [16, 1, 0, 0, 0], [16, 1, 0, 0, 0]
    # bfloat16 rounds these inputs to the integers. Sums of their products are exact up to 256, so
    # the order and the dtype of the additions, which differ between processors, do not matter. The
    # product of the zeroth row and column is 257, which is rounded to 256.
    x, kernel = (ops.convert_to_tensor((v * (1 + 2.0**-11)).astype("float32")) for v in (x, kernel))
    bias = ops.full((7,), 100.25, dtype="float32")
    found = dense(x, ops.cast(kernel, kernel_dtype), bias)
    rounded = [ops.cast(ops.cast(v, kernel_dtype), "float32") for v in (x, kernel)]
    rounded = [ops.convert_to_numpy(v).astype("float64") for v in rounded]
    product = ops.convert_to_tensor((rounded[0] @ rounded[1]).astype("float32"))
    expected = ops.cast(ops.cast(product, kernel_dtype), "float32") + bias
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("growing", [True, False])
def test_steps_of_a_source_of_padding_equal_the_keras_model(growing):
    model = make_model()
    source = np.array([[0] * 7, [5, 7, 9, 2, 1, 0, 0]], "int32")
    plain = model.encode(source, STEPS)
    fast, step = folded(model).start_search(source, STEPS, 1, growing=growing)
    for ids in ([0, 0], [5, 3], [7, 1]):
        ids = np.array(ids, "int32")
        expected, plain = model.step(ids, plain)
        logits, fast = step(ops.convert_to_tensor(ids), fast)
        np.testing.assert_allclose(logits, expected, atol=2e-5, rtol=2e-5)
