"""Tests the layer as a replacement for `keras.layers.MultiHeadAttention`."""

import inspect

import keras
import numpy as np
import pytest
from keras import ops
from layer_cases import CASES, random_inputs

from t2t_relpos.layers import RelativeMultiHeadAttention
from t2t_relpos.layers.attention_base import INTO_HEADS, OUT_OF_HEADS, HeadProjection

X = np.random.default_rng(1).normal(size=(3, 7, 6)).astype("float32")
Y = np.random.default_rng(2).normal(size=(3, 11, 6)).astype("float32")
# Keras's layer fails on JAX with a value_dim other than key_dim.
VALUE_DIM = 5 if keras.backend.backend() == "jax" else 13


def positional_arguments(function):
    """Returns (name, default) of the arguments that are not keyword-only."""
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


def test_arguments_start_with_those_of_keras():
    ours, theirs = RelativeMultiHeadAttention, keras.layers.MultiHeadAttention
    assert positional_arguments(ours) == positional_arguments(theirs)
    expected = positional_arguments(theirs.call)
    assert positional_arguments(ours.call)[: len(expected)] == expected


@pytest.mark.parametrize("distances, rows", [(3, 7), ((6, 2), 9)])
def test_from_multi_head_attention_equals_the_source_layer(distances, rows):
    theirs = keras.layers.MultiHeadAttention(2, 5, value_dim=VALUE_DIM, use_gate=True)
    theirs(X, Y, Y[..., :3])
    theirs.set_weights([np.random.default_rng(3).normal(size=v.shape) for v in theirs.variables])
    ours = RelativeMultiHeadAttention.from_multi_head_attention(
        theirs, distances, share_heads=False
    )
    assert ours.key_embedding.table.shape == (2, rows, 5)
    # On PyTorch, Keras's fused kernel rounds differently.
    np.testing.assert_allclose(ours(X, Y, Y[..., :3]), theirs(X, Y, Y[..., :3]), atol=1e-4)


def test_frozen_projections_stay_frozen():
    theirs = keras.layers.MultiHeadAttention(2, 5)
    theirs(X, Y)
    theirs.query_dense.trainable = False
    ours = RelativeMultiHeadAttention.from_multi_head_attention(theirs, 3)
    frozen = {id(v) for v in ours.non_trainable_variables}
    assert frozen == {id(v) for v in ours.query_dense.variables}
    theirs.trainable = False
    assert not RelativeMultiHeadAttention.from_multi_head_attention(theirs, 3).trainable_variables


@pytest.mark.parametrize("name", ["query", "output"])
def test_initializer_uses_the_fans_of_the_matrix(name):
    layer = RelativeMultiHeadAttention(17, 19, max_relative_position=3)
    layer.build((None, None, 23), (None, None, 23))
    kernel = ops.convert_to_numpy(getattr(layer, f"{name}_dense").kernel)
    limit = (6 / (23 + 17 * 19)) ** 0.5
    assert 0.99 * limit < np.abs(kernel).max() <= limit


@pytest.mark.parametrize(
    "equation, shape, input_shape, matrix_shape",
    [
        (INTO_HEADS, (None, 2, 5), (3, 7, 11), (11, 10)),
        (OUT_OF_HEADS, (None, 11), (3, 7, 2, 5), (10, 11)),
    ],
)
def test_matrix_of_a_head_projection(equation, shape, input_shape, matrix_shape, rng):
    layer = HeadProjection(equation, shape)
    layer.build(input_shape)
    matrix = rng.normal(size=matrix_shape).astype("float32")
    layer.matrix.assign(matrix)
    assert layer.matrix.shape == matrix_shape
    for dtype in ("float32", "float64"):
        np.testing.assert_array_equal(np.asarray(layer.matrix, dtype), matrix.astype(dtype))
    np.testing.assert_array_equal(ops.reshape(layer.kernel, matrix_shape), matrix)


def small_model():
    inputs = keras.Input((7, 6))
    layer = RelativeMultiHeadAttention(2, 5, max_relative_position=3, name="attention")
    return keras.Model(inputs, layer(inputs, inputs)), layer


quantizes = pytest.mark.usefixtures("frozen_objects")
ignores_other_layers = pytest.mark.filterwarnings(
    "ignore:Layer .* does not have a `quantize` method"
)
ATTENTIONS = ["relative", "v2_masked", "2d", "local", "relations"]


def projections(layer):
    names = ["query", "key", "value", "output", *(["gate"] if layer.use_gate else [])]
    return [getattr(layer, f"{name}_dense") for name in names]


def layer_and_copy(case, inputs):
    """Returns two layers with a gate and the same weights."""
    layers = [case.make(use_gate=True, name="attention") for _ in range(2)]
    for layer in layers:
        case.call(layer, inputs)
    layers[1].set_weights(layers[0].get_weights())
    return layers


@quantizes
@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize(
    "method, argument, message",
    [
        ("enable_lora", 2, "without LoRA. Received: LoRA in attention/query"),
        ("quantize", "int8", "that are not quantized. Received: attention/query, "),
    ],
)
def test_a_layer_adapts_all_of_its_projections(name, method, argument, message, rng):
    case = CASES[name]
    inputs = random_inputs(case.input_names(), rng)
    layer, by_projection = layer_and_copy(case, inputs)
    before = ops.convert_to_numpy(case.call(layer, inputs))
    options = {"lora_alpha": 3} if method == "enable_lora" else {}
    initializer = {"b_initializer": "normal"} if method == "enable_lora" else {}
    getattr(layer, method)(argument, **options, **initializer)
    for projection in projections(by_projection):
        getattr(projection, method)(argument, **options)
    of_both = [[v.path for v in each.trainable_variables] for each in (layer, by_projection)]
    assert of_both[0] == of_both[1]
    by_projection.set_weights(layer.get_weights())
    after = ops.convert_to_numpy(case.call(layer, inputs))
    np.testing.assert_allclose(after, case.call(by_projection, inputs), atol=1e-6)
    assert not np.array_equal(after, before)
    if method == "enable_lora":
        kernels = [ops.convert_to_numpy(p.lora_kernel_a) for p in projections(layer)[:2]]
        assert not np.array_equal(*kernels)
    else:
        assert layer.get_config() == by_projection.get_config()
    with pytest.raises(ValueError, match=message):
        getattr(layer, method)(argument)


def test_lora_of_a_layer_trains_its_kernels_only_saves_and_continues(tmp_path):
    model, layer = small_model()
    assert "lora_rank" not in layer.get_config()
    layer.enable_lora(2)
    frozen = ops.convert_to_numpy(layer.query_dense._kernel)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(X, X, epochs=3, verbose=0)
    np.testing.assert_array_equal(layer.query_dense._kernel, frozen)
    merged = np.asarray(layer.query_dense.matrix)
    assert not np.allclose(merged, frozen.reshape(merged.shape))
    with pytest.raises(ValueError, match="Expected a projection without LoRA. Received: .*query"):
        layer.query_dense.matrix.assign(merged)
    expected = ops.convert_to_numpy(model(X))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(X), expected, atol=1e-6)
    assert loaded.get_layer("attention").get_config() == layer.get_config()
    before = loaded.get_weights()
    loaded.fit(X, X, verbose=0)
    changed = zip(loaded.variables, before, loaded.get_weights())
    names = {v.path for v, old, new in changed if not np.array_equal(old, new)}
    assert {f"attention/{n}/lora_kernel_b" for n in ("query", "attention_output")} <= names
    assert "attention/query/kernel" not in names


@quantizes
@ignores_other_layers
def test_int8_quantization_of_a_layer_is_close_is_that_of_its_model_and_saves(tmp_path):
    (model, layer), (other, _) = small_model(), small_model()
    other.set_weights(model.get_weights())
    before = ops.convert_to_numpy(model(X))
    layer.quantize("int8")
    other.quantize("int8")
    found, expected = (ops.convert_to_numpy(each(X)) for each in (model, other))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(found, before, atol=0.05 * np.abs(before).max())
    if keras.backend.backend() == "torch":
        assert len(list(layer.parameters())) == len(layer.variables)
    with pytest.raises(ValueError, match="already quantized"):
        model.quantize("int8")
    with pytest.raises(ValueError, match="Received: .*query, quantized to int8"):
        layer.query_dense.matrix.numpy()
    for _ in range(2):  # A loaded model can be saved too.
        model.save(tmp_path / "model.keras")
        model = keras.saving.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(ops.convert_to_numpy(model(X)), expected)


@quantizes
def test_conversion_reports_layers_that_it_does_not_support():
    def make(name, build=True):
        layer = keras.layers.MultiHeadAttention(2, 5, name=name)
        if build:
            layer(X, X)
        return layer

    with_lora, quantized = make("first"), make("second")
    with_lora.query_dense.enable_lora(2)
    quantized.value_dense.quantize("int8")
    for layer, message in (
        (keras.layers.Dense(3), "a `keras.layers.MultiHeadAttention`. Received: a Dense"),
        (make("new", build=False), "a built layer. Received: one without weights."),
        (with_lora, "a layer without LoRA. .* query .* of first"),
        (quantized, ".* second, whose value projection is quantized to int8"),
    ):
        with pytest.raises(ValueError, match=f"Expected {message}"):
            RelativeMultiHeadAttention.from_multi_head_attention(layer, 3)
    with pytest.raises(ValueError, match="Expected no `num_key_value_heads`"):
        convert = RelativeMultiHeadAttention.from_multi_head_attention
        convert(make("fourth"), 1, num_key_value_heads=1)
