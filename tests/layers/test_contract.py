"""The contract of every layer: configuration, symbolic calls, bfloat16, `fit` and saving."""

import re

import keras
import numpy as np
import pytest
from keras import ops
from layer_cases import BATCH, CASES, INPUTS, SIZES, WIDTH, random_inputs, symbolic_inputs

# Settings in addition to those of CASES.
VARIANTS = {
    "relative": [
        {"share_heads": False, "value_dim": 7, "output_shape": 11},
        {"use_bias": False, "use_value_table": False, "sliding_window": 3},
        {"use_gate": True, "use_key_table": False, "seed": 5, "dropout": 0.1},
        {"kernel_regularizer": "l2", "bias_constraint": "unit_norm", "activity_regularizer": "l1"},
    ],
    "v2": [
        {"masked": True, "value_dim": 7, "output_shape": 11},
        {"share_heads": True, "use_bias": False, "sliding_window": 3},
        {"table_initializer": "zeros", "use_gate": True, "use_value_table": False, "seed": 5},
    ],
    "2d": [
        {"share_heads": True, "value_dim": 7, "output_shape": 11, "use_bias": False},
        {"table_initializer": "zeros", "use_gate": True, "dropout": 0.1, "seed": 5},
    ],
    "local": [
        {"share_heads": True, "value_dim": 7, "output_shape": 11},
        {"table_initializer": "zeros", "use_gate": True, "use_value_table": False, "dropout": 0.1},
    ],
    "relations": [
        {"share_heads": False, "value_dim": 7},
        {"use_key_table": False, "dropout": 0.1, "seed": 3},
    ],
    "feed_forward": [{"dropout": 0.1}],
    "encoder": [{"normalize_first": False, "share_heads": False, "dropout": 0.1, "seed": 3}],
}
LAYERS = {
    f"{name}_{number}": (CASES[name], settings)
    for name in CASES
    for number, settings in enumerate([{}, *VARIANTS.get(name, [])])
}
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

    half = case.make(**settings, dtype="mixed_bfloat16")
    case.call(half, arrays)
    assert all(v.dtype == "float32" for v in half.trainable_variables)
    half.set_weights(layer.get_weights())
    outputs = case.call(half, arrays)
    assert keras.backend.standardize_dtype(outputs.dtype) == "bfloat16"
    np.testing.assert_allclose(as_array(outputs), expected, atol=0.05 * np.abs(expected).max())


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


@pytest.mark.parametrize(
    "name, setting, values",
    [
        ("relative", "num_heads", [0]),
        ("relative", "value_dim", [-7]),
        ("relative", "sliding_window", [0]),
        ("v2", "max_relative_position", [0, -3, None, 2.0]),
        ("2d", "max_relative_position", [0]),
        ("local", "block_length", [0]),
        ("relations", "num_relations", [0, -1, 2.5, True, "eleven"]),
        ("position_embedding", "depth", [0]),
        ("learned_positions", "max_length", [0]),
        ("encoder", "num_heads", [0]),
        ("encoder", "intermediate_dim", [0]),
    ],
)
def test_constructor_requires_positive_integers(name, setting, values):
    for value in values:
        message = f"Expected `{setting}` to be a positive integer. Received: {setting}={value!r}"
        with pytest.raises(ValueError, match=re.escape(message)):
            CASES[name].make(**{setting: value})


LARGEST_K = "from 0 to 1,000,000. Received: max_relative_position="


@pytest.mark.parametrize(
    "name, settings, message",
    [
        *(
            ("relative", {"max_relative_position": k}, f"{LARGEST_K}{k}")
            for k in (-1, None, 2.0, 10**9)
        ),
        ("position_embedding", {"max_relative_position": -1}, f"{LARGEST_K}-1"),
        ("encoder", {"max_relative_position": None}, "Expected `max_relative_position`"),
        (
            "relative",
            {"dropout": 1.0},
            "`dropout` to be at least 0 and below 1. Received: dropout=1",
        ),
        ("encoder", {"dropout": "a"}, "to be at least 0 and below 1. Received: dropout='a'"),
        ("relative", {"attention_axes": (1, 2)}, r"`attention_axes` to be None or 1.*\(1, 2\)"),
        ("relative", {"output_shape": (3, 5)}, r"Expected `output_shape` to be an int.*\(3, 5\)"),
        ("relations", {"num_relations": (11, 0)}, "to be a positive integer. Received: "),
        (
            "relations",
            {"num_relations": ()},
            r"one for each label channel. Received: \(\). For edge",
        ),
        (
            "relations",
            {"use_key_table": False, "use_value_table": False},
            "Expected use_key_table or use_value_table .* Received: both False",
        ),
    ],
)
def test_constructor_rejects_invalid_settings(name, settings, message):
    with pytest.raises(ValueError, match=message):
        CASES[name].make(**settings)


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
