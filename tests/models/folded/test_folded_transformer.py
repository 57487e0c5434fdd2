"""Compares `FoldedTransformer` with the Keras model, on every backend."""

import keras
import numpy as np
import pytest
from keras import ops
from small_transformers import random_transformer

from t2t_relpos.decoding.state_rows import repeat_rows
from t2t_relpos.models.folded import FoldedTransformer, fold_weights
from t2t_relpos.models.folded.backend_ops import dense

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
    "post-norm": {"normalize_first": False},
    "tables per head": {"share_heads": False},
    "one head, tables per head": {"share_heads": False, "num_heads": 1},
    "key tables only": {"use_value_table": False},
    "value tables only": {"use_key_table": False},
    "K = 0": {"max_relative_position": 0},
    "K above length": {"max_relative_position": 17},
    "relative cross-attention": {"relative_cross_attention": True},
    "relative cross-attention, tables per head": {
        "relative_cross_attention": True,
        "share_heads": False,
    },
    "sinusoidal": {"position": "sinusoidal"},
    "sinusoidal, post-norm": {"position": "sinusoidal", "normalize_first": False},
    "relative and sinusoidal": {"position": "relative+sinusoidal"},
    "learned": {"position": "learned", "tie_embeddings": False},
    "no positions": {"position": "none"},
    "target space": {"target_space_id": 9, "layer_norm_epsilon": 0.1},
}


@pytest.fixture(params=CONFIGS, ids=lambda name: name.replace(" ", "-"))
def model(request):
    return random_model(**CONFIGS[request.param])


def random_model(**settings):
    return random_transformer(0.3, **SMALL | settings)


def sources():
    source = np.random.default_rng(2).integers(2, VOCAB, size=(BATCH, LENGTH)).astype("int32")
    source[1, 4:] = source[3, 1:] = 0
    return source


def folded(model):
    return FoldedTransformer(model.config, fold_weights(model))


def survivors(beam_size, step):
    """Returns, for each hypothesis, the index of the one that it continues in the same sentence.

    Some hypotheses have no continuation, and some have several.
    """
    beams = np.random.default_rng(step).integers(beam_size, size=(BATCH, beam_size))
    return (beams + beam_size * np.arange(BATCH)[:, None]).ravel().astype("int32")


@pytest.mark.parametrize("growing", [True, False])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_steps_equal_the_keras_model(model, beam_size, growing):
    source = sources()
    plain = model.encode(np.repeat(source, beam_size, axis=0), STEPS)
    fast, step = folded(model).start(source, STEPS, beam_size, growing=growing)
    fast = repeat_rows(fast, beam_size)
    ids = np.zeros(BATCH * beam_size, "int32")
    for number in range(STEPS):
        expected, plain = model.step(ids, plain)
        logits, fast = step(ops.convert_to_tensor(ids), fast)
        np.testing.assert_allclose(logits, expected, atol=2e-5, rtol=2e-5)
        rows = survivors(beam_size, number)
        plain = keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), plain)
        fast = {**fast, "ancestors": ops.take(fast["ancestors"], rows, axis=0)}
        ids = (
            np.random.default_rng(10 + number)
            .integers(1, VOCAB, size=BATCH * beam_size)
            .astype("int32")
        )


def test_logits_and_alignments_of_score_equal_the_keras_model(model):
    source = sources()
    targets = np.random.default_rng(3).integers(2, VOCAB, size=(BATCH, STEPS)).astype("int32")
    targets[2, 3:] = 0
    logits, alignments = folded(model).score(source, targets)
    np.testing.assert_allclose(
        logits, model({"inputs": source, "targets": targets}), atol=2e-5, rtol=2e-5
    )
    _, expected = model.score(source, targets, return_alignments=True)
    np.testing.assert_allclose(alignments, expected, atol=2e-5)
    assert alignments.shape == (BATCH, STEPS, LENGTH)
    np.testing.assert_allclose(ops.sum(alignments, -1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(ops.convert_to_numpy(alignments)[1, :, 4:], 0.0)


def test_bfloat16_kernels_change_logits_only_by_rounding_errors():
    model, source = random_model(), sources()
    targets = np.random.default_rng(3).integers(2, VOCAB, size=(BATCH, STEPS)).astype("int32")
    weights = fold_weights(model, kernel_dtype="bfloat16")
    dtypes = {
        name: keras.backend.standardize_dtype(weights["decoder"][0]["self"][name].dtype)
        for name in ("input", "input_bias", "output", "key_table")
    }
    assert dtypes == {
        "input": "bfloat16",
        "input_bias": "float32",
        "output": "bfloat16",
        "key_table": "float32",
    }
    logits, _ = FoldedTransformer(model.config, weights).score(source, targets)
    expected, _ = folded(model).score(source, targets)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    error = ops.convert_to_numpy(ops.abs(logits - expected))
    # About ten products are rounded to the 8 bits of precision of bfloat16.
    assert 1e-4 < error.max() < 0.05 * ops.convert_to_numpy(ops.abs(expected)).max()


@pytest.mark.parametrize("kernel_dtype", ["float32", "bfloat16"])
def test_dense_rounds_inputs_to_the_dtype_of_the_kernel(kernel_dtype):
    rng = np.random.default_rng(5)
    x, kernel = rng.normal(size=(3, 5)), rng.normal(size=(5, 7))
    x, kernel = (ops.convert_to_tensor(v.astype("float32")) for v in (x, kernel))
    bias = ops.full((7,), 100.0, dtype="float32")
    found = dense(x, ops.cast(kernel, kernel_dtype), bias)
    rounded = [ops.cast(ops.cast(v, kernel_dtype), "float32") for v in (x, kernel)]
    rounded = [ops.convert_to_numpy(v).astype("float64") for v in rounded]
    product = ops.convert_to_tensor((rounded[0] @ rounded[1]).astype("float32"))
    expected = ops.cast(ops.cast(product, kernel_dtype), "float32") + bias
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    np.testing.assert_allclose(found, expected, rtol=2e-5)


def test_folded_kernels_equal_the_layers():
    model = random_model()
    layer = model.decoder_layers[0]
    weights = fold_weights(model)["decoder"][0]["self"]
    weights = keras.tree.map_structure(ops.convert_to_numpy, weights)
    x = np.random.default_rng(4).normal(size=(5, 22))
    centred = x - x.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    norm = layer.self_attention_residual.norm
    read = normal * np.asarray(norm.gamma, "float64") + np.asarray(norm.beta, "float64")
    query = read @ np.asarray(layer.self_attention.query_dense.matrix, "float64") * 11**-0.5
    np.testing.assert_allclose(
        (normal @ weights["input"] + weights["input_bias"])[:, :22], query, rtol=1e-5, atol=1e-5
    )
    written = np.asarray(layer.self_attention.output_dense.matrix, "float64")
    np.testing.assert_allclose(
        weights["output"], written - written.mean(1, keepdims=True), atol=1e-7
    )
    assert abs(weights["output"].sum(axis=1)).max() < 1e-5


@pytest.mark.parametrize("growing", [True, False])
def test_steps_of_a_source_of_padding_equal_the_keras_model(growing):
    model = random_model()
    source = np.array([[0] * 7, [5, 7, 9, 2, 1, 0, 0]], "int32")
    plain = model.encode(source, STEPS)
    fast, step = folded(model).start(source, STEPS, 1, growing=growing)
    for ids in ([0, 0], [5, 3], [7, 1]):
        ids = np.array(ids, "int32")
        expected, plain = model.step(ids, plain)
        logits, fast = step(ops.convert_to_tensor(ids), fast)
        np.testing.assert_allclose(logits, expected, atol=2e-5, rtol=2e-5)
