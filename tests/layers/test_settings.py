"""Settings, attributes and returned scores of several layers."""

import re

import keras
import numpy as np
import pytest
from keras import ops
from layer_cases import (
    BATCH,
    CASES,
    WIDTH,
    random_inputs,
)


@pytest.mark.parametrize("name", ["relative", "2d"])
@pytest.mark.parametrize(
    "size, axes", [(np.int64(7), (7,)), ([7], (7,)), ((2, 5), (2, 5)), (np.array([2, 5]), (2, 5))]
)
def test_output_shape_has_any_number_of_axes(name, size, axes, rng):
    layer = CASES[name].make(output_shape=size)
    arrays = random_inputs(CASES[name].input_names(), rng)
    outputs = CASES[name].call(layer, arrays)
    assert tuple(outputs.shape) == (*arrays[CASES[name].inputs.split()[0]].shape[:-1], *axes)
    flat = CASES[name].make(output_shape=int(np.prod(axes)))
    CASES[name].call(flat, arrays)
    flat.set_weights([w.reshape(v.shape) for w, v in zip(layer.get_weights(), flat.weights)])
    flat_outputs = ops.reshape(CASES[name].call(flat, arrays), outputs.shape)
    np.testing.assert_allclose(outputs, flat_outputs, atol=1e-5)


def ones_initializer(shape, dtype=None):
    return ops.ones(shape, dtype)


@pytest.mark.parametrize(
    "name, setting, initializer",
    [
        ("relative", "table_initializer", np.ones((7, 5))),
        ("relative", "bias_initializer", None),
        ("relative", "kernel_initializer", ones_initializer),
        ("relative_per_head", "table_initializer", ones_initializer),
        ("v2", "table_initializer", np.ones((2, 5, 5))),
        ("relations", "table_initializer", keras.initializers.Ones),
        ("position_embedding", "embeddings_initializer", np.ones((7, 5))),
        ("tokens", "embeddings_initializer", np.ones((7, WIDTH))),
        ("feed_forward", "kernel_initializer", ones_initializer),
        ("encoder", "bias_initializer", ones_initializer),
    ],
)
def test_initializers_that_keras_accepts(name, setting, initializer, rng):
    layer = CASES[name].make(**{setting: initializer})
    CASES[name].call(layer, random_inputs(CASES[name].input_names(), rng))
    kind = {
        "table_initializer": "(embedding|_table)",
        "embeddings_initializer": "(table|embeddings)",
    }
    pattern = kind.get(setting, setting.split("_")[0])
    found = [v for v in layer.weights if re.search(f"/[^/]*{pattern}[^/]*(/table)?$", v.path)]
    assert found
    expected = None if initializer is None else 1
    for variable in found:
        assert expected is None or (ops.convert_to_numpy(variable) == expected).all()


def test_output_spec_of_scores_outside_of_a_call():
    layer = CASES["relative"].make(dtype="mixed_float16")
    x, y = keras.KerasTensor((2, 3, 6)), keras.KerasTensor((None, None, 6))
    specs = layer.compute_output_spec(x, y, return_attention_scores=True)
    assert [(spec.shape[1:], spec.dtype) for spec in specs] == [
        ((3, 6), "float16"),
        ((2, 3, None), "float16"),
    ]


@pytest.mark.parametrize(
    "name, attribute",
    [("relative", "key_embedding"), ("encoder", "self_attention"), ("tokens", "embeddings")],
)
def test_attributes_of_a_layer_that_is_not_built(name, attribute):
    layer = CASES[name].make()
    assert not hasattr(layer, attribute)
    with pytest.raises(AttributeError, match=f"{attribute}'. The layer is not built. .*`build`"):
        getattr(layer, attribute)
    with pytest.raises(AttributeError, match="has no attribute '_other'$"):
        getattr(layer, "_other")  # noqa: B009


@pytest.mark.parametrize(
    "name, settings, key_shape, value_shape",
    [
        ("relative", {}, (7, 5), (7, 7)),
        ("relative", {"share_heads": False}, (2, 7, 5), (2, 7, 7)),
        ("v2", {}, (2, 5, 5), (2, 5, 7)),
        ("v2", {"share_heads": True}, (5, 5), (5, 7)),
        ("v2", {"masked": True}, (2, 3, 5), (2, 3, 7)),
        ("v2", {"masked": True, "share_heads": True}, (3, 5), (3, 7)),
        ("2d", {}, (2, 5, 5), (2, 5, 5)),
        ("2d", {"share_heads": True}, (5, 5), (5, 5)),
        ("local", {}, (2, 12, 5), (2, 12, 7)),
        ("local", {"share_heads": True}, (12, 5), (12, 7)),
    ],
)
def test_table_shapes(name, settings, key_shape, value_shape):
    layer = CASES[name].make(value_dim=7, **settings)
    shape = (None, None, None, 6) if name == "2d" else (None, None, 6)
    layer.build(shape, shape)
    tables = [v.shape for v in layer.trainable_variables if "embedding" in v.path]
    assert tables == [key_shape, value_shape]


@pytest.mark.parametrize("name", ["relative", "relations", "2d"])
def test_returned_attention_weights_sum_to_one(name, rng):
    layer, arrays = CASES[name].make(), random_inputs(CASES[name].input_names(), rng)
    call = lambda *args, **options: layer(*args, **options, return_attention_scores=True)
    outputs, weights = CASES[name].call(call, arrays)
    np.testing.assert_allclose(outputs, CASES[name].call(layer, arrays), atol=1e-5)
    assert weights.shape == ((BATCH, 2, 35, 35) if name == "2d" else (BATCH, 2, 17, 19))
    np.testing.assert_allclose(ops.sum(weights, axis=-1), 1, atol=1e-6)


@pytest.mark.parametrize("name", ["relative", "v2", "local"])
def test_attention_uses_the_mask_of_an_embedding(name):
    ids = np.array([[3, 5, 2, 0, 0], [1, 2, 3, 4, 5]])
    x = keras.layers.Embedding(7, WIDTH, mask_zero=True)(ids)
    layer = CASES[name].make(use_bias=False)
    outputs = layer(x, x)
    np.testing.assert_array_equal(outputs._keras_mask, ids != 0)
    outputs = ops.convert_to_numpy(outputs)
    np.testing.assert_array_equal(outputs[0, 3:], 0)
    first = ops.convert_to_numpy(x)[:1, :3]
    np.testing.assert_allclose(outputs[:1, :3], layer(first, first), atol=1e-6)
