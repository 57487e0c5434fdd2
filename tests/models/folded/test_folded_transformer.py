"""Tests of `FoldedTransformer`: epsilons and 16-bit kernels.

test_variants.py compares its logits and steps with their definition.
"""

import keras
import numpy as np
import pytest
from keras import ops
from small_transformers import BATCH, SOURCE, TARGETS, random_transformer, shared_transformer

from t2t_relpos.models.folded import FoldedTransformer, fold_weights
from t2t_relpos.models.folded.transformer import dense

SMALL = {"num_decoder_layers": 2, "hidden_dim": 22, "num_heads": 2}


def folded(model):
    return FoldedTransformer(model.config, fold_weights(model))


@pytest.mark.parametrize("normalize_first", [True, False])
def test_each_normalization_has_its_epsilon(normalize_first):
    model = random_transformer(0.3, **SMALL, normalize_first=normalize_first)
    epsilons = iter(np.linspace(0.1, 20, 50).tolist())
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.LayerNormalization):
            layer.epsilon = next(epsilons)
    logits, _ = folded(model).logits_and_alignments(SOURCE, TARGETS)
    expected = model(BATCH)
    np.testing.assert_allclose(logits, expected, atol=2e-5, rtol=2e-5)


def test_bfloat16_kernels_change_logits_only_by_rounding_errors():
    model = shared_transformer(0.3, **SMALL)
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
