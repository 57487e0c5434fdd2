"""The contract of every layer: configuration, symbolic calls, bfloat16, `fit` and saving."""

import json
import re

import keras
import numpy as np
import pytest
from keras import ops
from layer_cases import (
    BATCH,
    CASES,
    INPUTS,
    LAYERS,
    SIZES,
    WIDTH,
    random_inputs,
    symbolic_inputs,
)

IS_JAX = keras.backend.backend() == "jax"
FLOAT_AND_INT_INPUTS = [name for name in INPUTS if not name.endswith("_mask")]
# The output of the position embedding has no batch axis. The residual can't be saved, because its
# sublayer is a function.
IN_MODEL = [name for name in LAYERS if name not in ("position_embedding_0", "residual_0")]


def as_array(x):
    return ops.convert_to_numpy(ops.cast(x, "float32"))


@pytest.mark.parametrize("name", LAYERS)
def test_contract_of_a_layer(name, rng):
    case, settings = LAYERS[name]
    layer, arrays = case.make(**settings), random_inputs(case.input_names(), rng)
    expected = as_array(case.call(layer, arrays))
    assert np.isfinite(expected).all()
    axes = [SIZES[axis] for axis in INPUTS[case.inputs.split()[0]] if axis in SIZES]
    if name != "position_embedding_0":
        assert expected.shape == (BATCH, *axes, settings.get("output_shape", WIDTH))

    config = layer.get_config()
    assert type(layer).from_config(config).get_config() == config
    restored = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert restored.get_config() == config

    symbols = {key: keras.Input(x.shape[1:], dtype=str(x.dtype)) for key, x in arrays.items()}
    assert case.call(layer, symbols).shape[1:] == expected.shape[1:]
    shapes = [arrays[each].shape for each in case.inputs.split()]
    assert layer.compute_output_shape(*shapes) == expected.shape

    half = case.make(**settings, dtype="mixed_bfloat16")
    case.call(half, arrays)
    assert all(v.dtype == "float32" for v in half.trainable_variables)
    half.set_weights(layer.get_weights())
    outputs = case.call(half, arrays)
    assert keras.backend.standardize_dtype(outputs.dtype) == "bfloat16"
    specs = {key: keras.KerasTensor(x.shape, dtype=str(x.dtype)) for key, x in arrays.items()}
    unbuilt = case.make(**settings, dtype="mixed_bfloat16")
    spec = case.call(unbuilt.compute_output_spec, specs)
    assert (spec.shape, spec.dtype) == (expected.shape, "bfloat16")
    np.testing.assert_allclose(as_array(outputs), expected, atol=0.05 * np.abs(expected).max())


@pytest.mark.parametrize("name", LAYERS)
def test_configs_have_json_types_for_numpy_numbers(name):
    case, settings = LAYERS[name]
    layer = case.make(**settings)
    config = layer.get_config()
    numbers = {
        key: np.asarray(value)[()] if isinstance(value, (bool, int, float)) else value
        for key, value in config.items()
        if key != "trainable"  # Keras checks its type.
    }
    found = type(layer).from_config(numbers).get_config()
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(config))


@pytest.fixture(scope="module", params=["unknown sizes", "known sizes"])
def model_and_layers(request):
    """Returns a model with an output for each name, and the layers by name.

    Sizes of the inputs are unknown for the settings of CASES and known for VARIANTS.
    """
    keras.utils.set_random_seed(20180401)
    symbols = symbolic_inputs(FLOAT_AND_INT_INPUTS)
    if request.param == "known sizes":
        symbols = {
            key: keras.Input(x.shape[1:], dtype=str(x.dtype), name=key)
            for key, x in random_inputs(symbols, np.random.default_rng(0)).items()
        }
    names = [n for n in IN_MODEL if n.endswith("_0") == (request.param == "unknown sizes")]
    layers = {name: LAYERS[name][0].make(**LAYERS[name][1], name=name) for name in names}
    outputs = {name: LAYERS[name][0].call(layer, symbols) for name, layer in layers.items()}
    for name, output in outputs.items():
        assert request.param == "known sizes" or set(output.shape[:-1]) == {None}, name
    return keras.Model(symbols, outputs), layers


def inputs_and_outputs(layers):
    """Returns arrays, and the outputs of uncompiled calls by name."""
    arrays = random_inputs(FLOAT_AND_INT_INPUTS, np.random.default_rng(1))
    return arrays, {
        name: as_array(LAYERS[name][0].call(layer, arrays)) for name, layer in layers.items()
    }


def assert_outputs_equal(found, expected, **tolerances):
    assert found.keys() == expected.keys()
    for name, output in found.items():
        np.testing.assert_allclose(output, expected[name], err_msg=name, **tolerances)


def test_predict_of_all_layers(model_and_layers):
    model, layers = model_and_layers
    # XLA is tested by test_compile_matrix.py. JAX without compilation would take minutes.
    model.jit_compile = IS_JAX
    arrays, expected = inputs_and_outputs(layers)
    assert_outputs_equal(model.predict(arrays, verbose=0), expected, rtol=1e-5, atol=1e-5)


def test_saved_model_of_all_layers(model_and_layers, tmp_path):
    model, layers = model_and_layers
    arrays, expected = inputs_and_outputs(layers)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_outputs_equal(loaded(arrays), expected, atol=1e-5)


def test_fit_changes_the_weights_of_all_layers(model_and_layers):
    model, layers = model_and_layers
    arrays, outputs = inputs_and_outputs(layers)
    before = {name: layer.get_weights() for name, layer in layers.items()}
    targets = {name: np.ones_like(output) for name, output in outputs.items()}
    model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=not IS_JAX)
    model.fit(arrays, targets, verbose=0)
    for name, layer in layers.items():
        changed = [not np.array_equal(*pair) for pair in zip(before[name], layer.get_weights())]
        assert any(changed) == (name != "sinusoids_0"), name


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
