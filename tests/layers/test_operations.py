"""Every layer of `layer_cases` gives the same values under every operation.

One layer: its configuration, symbolic calls, bfloat16, and Keras's `run_layer_test`. Many layers,
as outputs of one model: `predict`, `fit`, saving and XLA. Many layers, called under a condition
that programs set: dtypes, empty inputs and graphs.

The fast tests compile the gradients of all functions that define their own in float32 for known
lengths, and the layers with these functions in bfloat16 or float16 for changing lengths. Of the
layers that are made of others, they compile outputs. The slow tests compile their gradients, and
add dropout. `make test-matrix` tests all combinations, and `make test-peers` runs Keras's test on
all variants of the layers.
"""

import contextlib
import functools
import inspect
import itertools
import json
import os
from typing import NamedTuple

import keras
import numpy as np
import pytest
from keras import ops
from keras.src.testing import TestCase
from layer_cases import (
    BATCH,
    CASES,
    INPUTS,
    LAYERS,
    SIZES,
    WIDTH,
    as_array,
    dtype_of,
    random_inputs,
    symbolic_inputs,
)

from t2t_relpos import layers
from t2t_relpos.models import CausalLM, Transformer, TransformerConfig

BACKEND = keras.backend.backend()


def assert_close(found, expected, tolerance=1e-5):
    """Asserts that the values of two dicts are finite and close, relative to the largest one."""
    assert found.keys() == expected.keys()
    for name in expected:
        a, b = as_array(found[name]), as_array(expected[name])
        assert np.isfinite(a).all(), name
        atol = tolerance * max(np.abs(b).max(), 1)
        np.testing.assert_allclose(a, b, atol=atol, err_msg=name)


# One layer.


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
    numbers = {
        key: np.asarray(value)[()] if isinstance(value, (bool, int, float)) else value
        for key, value in config.items()
        if key != "trainable"  # Keras checks its type.
    }
    found = type(layer).from_config(numbers).get_config()
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(config))
    restored = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert restored.get_config() == config
    case.call(restored, arrays)
    restored.set_weights(layer.get_weights())
    np.testing.assert_array_equal(as_array(case.call(restored, arrays)), expected)

    symbols = {key: keras.Input(x.shape[1:], dtype=str(x.dtype)) for key, x in arrays.items()}
    assert case.call(layer, symbols).shape[1:] == expected.shape[1:]
    shapes = [arrays[each].shape for each in case.inputs.split()]
    assert layer.compute_output_shape(*shapes) == expected.shape

    half = case.make(**settings, dtype="mixed_bfloat16")
    case.call(half, arrays)
    assert {v.dtype for v in half.weights} <= {"float32"}
    half.set_weights(layer.get_weights())
    outputs = case.call(half, arrays)
    assert keras.backend.standardize_dtype(outputs.dtype) == "bfloat16"
    specs = {key: keras.KerasTensor(x.shape, dtype=str(x.dtype)) for key, x in arrays.items()}
    unbuilt = case.make(**settings, dtype="mixed_bfloat16")
    spec = case.call(unbuilt.compute_output_spec, specs)
    assert (spec.shape, spec.dtype) == (expected.shape, "bfloat16")
    np.testing.assert_allclose(as_array(outputs), expected, atol=0.05 * np.abs(expected).max())


@pytest.mark.parametrize("name", [name for name in CASES if "_mask" in str(CASES[name].masks)])
def test_masked_positions_have_no_effect(name, rng):
    case = CASES[name]
    layer, names = case.make(), case.input_names(masks=True)
    inputs, others = random_inputs(names, rng), random_inputs(names, rng)
    masks = {each: rng.random(inputs[each].shape) < 0.6 for each in names if each.endswith("_mask")}
    changed = dict(inputs)
    for each, mask in masks.items():
        sequence = each.removesuffix("_mask")
        changed[sequence] = np.where(mask[..., None], inputs[sequence], others[sequence])
    found, expected, without_masks = (
        as_array(case.call(layer, *arguments))
        for arguments in ((inputs | masks, True), (changed | masks, True), (changed,))
    )
    is_token = masks.get(f"{case.inputs.split()[0]}_mask", np.ones(found.shape[:-1], bool))
    np.testing.assert_allclose(found[is_token], expected[is_token], atol=1e-5)
    assert np.abs(found - without_masks)[is_token].max() > 1e-3


ALL_VARIANTS = bool(os.environ.get("ALL_ARGUMENT_VARIANTS"))
SMALL_SIZES = {"T": 3, "S": 5, "L": 7, "H": 2, "W": 3}
# A residual has a function as an argument. Keras's test passes tensors only.
VARIANTS = [name for name in LAYERS if not name.startswith("residual")]
# The last variant of each class.
ONE_EACH = {type(LAYERS[name][0].make()): name for name in VARIANTS}.values()


@pytest.mark.parametrize("name", VARIANTS if ALL_VARIANTS else ONE_EACH)
@pytest.mark.filterwarnings("ignore")
def test_run_layer_test(name):
    case, settings = LAYERS[name]
    names = case.inputs.split()
    arguments = list(inspect.signature(case.make().call).parameters)
    inputs = dict(zip(arguments, names)) | {
        argument: value for argument, value in case.others.items() if argument == "relations"
    }
    fixed = {a: n for a, n in case.others.items() if a not in inputs}
    arrays = random_inputs(case.input_names(), np.random.default_rng(0), SMALL_SIZES)
    shapes = {f"{argument}_shape": arrays[n].shape for argument, n in inputs.items()}
    dtypes = {f"{argument}_shape": dtype_of(n) for argument, n in inputs.items()}
    if len(inputs) == 1:
        [shapes], [dtypes] = shapes.values(), dtypes.values()
    TestCase().run_layer_test(
        case.make,
        settings,
        input_shape=shapes,
        input_dtype=dtypes,
        call_kwargs={argument: arrays[name] for argument, name in fixed.items()},
        run_training_check=ALL_VARIANTS and len(inputs) == 1,
    )


# Many layers in one model.


VOCAB_SIZE = 11
BLOCK = {"intermediate_dim": 7, "num_heads": 2, "max_relative_position": 2}
# Largest difference, relative to the largest value.
TOLERANCES = {"float32": 1e-5, "mixed_bfloat16": 3e-2, "mixed_float16": 4e-3}


def sizes_of(length):
    return {"T": length, "S": length + 2, "L": length, "H": length, "W": 3}


# The sizes of two batches. Sizes of the inputs are unknown if they differ.
LENGTHS = {
    "fixed": (sizes_of(5), sizes_of(5)),
    "changing": (sizes_of(9), sizes_of(5)),
    "unknown": (SIZES, sizes_of(5)),
}


class Options(NamedTuple):
    """An operation on a model, and how the model is made.

    Args:
        layers: a key of OUTPUTS or GROUPS.
        operation: a key of OPERATIONS.
        dtype: a key of TOLERANCES.
        masks: whether the model has mask inputs, or a causal mask.
        dropout: rate of all dropouts.
        lengths: a key of LENGTHS.
    """

    layers: str
    operation: str
    dtype: str
    masks: bool
    dropout: float
    lengths: str


def case_outputs(name, inputs, masks, dropout):
    case, settings = LAYERS[name]
    settings = settings | ({"dropout": dropout} if dropout else {})
    return case.call(case.make(**settings, name=name), inputs, masks)


def layers_without_attention(inputs, masks, dropout):
    embedding = layers.TokenEmbedding(VOCAB_SIZE, WIDTH)
    x = embedding(inputs["ids"])
    x = layers.LearnedPositionEmbedding(31)(layers.SinusoidalPositionEncoding()(x))
    vectors = layers.RelativePositionEmbedding(2, depth=WIDTH)(x)
    x = layers.FeedForward(7, dropout=dropout)(ops.einsum("bsd,tsd->btd", x, vectors))
    x = layers.Residual(dropout=dropout)(x, sublayer=ops.tanh)
    return embedding(x, reverse=True)


def transformer(inputs, masks, dropout):
    sizes = {"vocab_size": VOCAB_SIZE, "num_encoder_layers": 1, "num_decoder_layers": 1}
    config = TransformerConfig(**sizes, hidden_dim=WIDTH, **BLOCK, dropout=dropout)
    model = Transformer(config)
    return model({"inputs": inputs["ids"], "targets": inputs["ids"]})


def causal_lm(inputs, masks, dropout):
    return CausalLM(VOCAB_SIZE, 1, hidden_dim=WIDTH, **BLOCK, dropout=dropout)(inputs["ids"])


MODELS = {
    function.__name__: function for function in (layers_without_attention, transformer, causal_lm)
}
CLASSES = {x for x in vars(layers).values() if isinstance(x, type) and issubclass(x, keras.Layer)}
# Functions of (inputs, masks, dropout).
OUTPUTS = {name: functools.partial(case_outputs, name) for name in LAYERS} | MODELS
# XLA compiles these. Other cases of attention take the same code. The first ones have all functions
# that define a gradient. The others are made of them.
OWN_GRADIENTS = (
    *("relative_0", "relative_flash_0", "relative_window_0"),
    *("relations_0", "layers_without_attention"),
)
COMPOSED = (
    *("v2_0", "v2_masked_0", "2d_0", "local_0", "encoder_0", "decoder_relative_cross_attention_0"),
    *("transformer", "causal_lm"),
)
COMPILED = (*OWN_GRADIENTS, *COMPOSED)
# The output of the position embedding has no batch axis. The residual can't be saved, because its
# sublayer is a function.
IN_MODEL = [name for name in LAYERS if name not in ("position_embedding_0", "residual_0")]
GROUPS = {
    "cases": [name for name in IN_MODEL if name.endswith("_0")],
    "own_gradients": OWN_GRADIENTS,
    "own_gradients_even": OWN_GRADIENTS[::2],
    "own_gradients_odd": OWN_GRADIENTS[1::2],
    "composed": COMPOSED,
    "composed_even": COMPOSED[::2],
    "composed_odd": COMPOSED[1::2],
    # Other layers apply dropout in the same way.
    "with_dropout": (
        *("relative_flash_0", "relative_window_0", "2d_0", "local_0", "relations_0"),
        "decoder_relative_cross_attention_0",
    ),
}


def make_model_and_batches(options):
    """Returns a model whose outputs are a dict, and two batches of its inputs."""
    # Equal names of variables in all models.
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    keras.config.set_dtype_policy(options.dtype)
    first, second = LENGTHS[options.lengths]
    symbols = symbolic_inputs(INPUTS, first if first is second else None)
    names = GROUPS.get(options.layers, (options.layers,))
    outputs = {name: OUTPUTS[name](symbols, options.masks, options.dropout) for name in names}
    batches = [make_batch(sizes, options.masks) for sizes in (first, second)]
    return keras.Model(symbols, outputs), batches


def make_batch(sizes, masks):
    """Returns a batch of all inputs. The input `y` is longer than `x`."""
    batch = random_inputs(INPUTS, np.random.default_rng(sizes["T"]), sizes)
    batch["ids"] = np.maximum(batch["ids"], 1)
    for name, array in batch.items():
        if masks and array.dtype != "float32" and name != "labels":
            array[1, 3:] = array[2, 1:] = 0
    return batch


def outputs_of_layers(model, batch):
    """Returns the outputs of plain calls of the layers of a model."""
    return {name: LAYERS[name][0].call(model.get_layer(name), batch) for name in model.output_names}


def predict_save_and_fit(model, batches, options, folder):
    """Without compilation by XLA, except on JAX, where that would take minutes."""
    model.jit_compile = BACKEND == "jax"
    expected = outputs_of_layers(model, batches[0])
    yield model.predict(batches[0], verbose=0), expected
    model.save(folder / "model.keras")
    yield keras.saving.load_model(folder / "model.keras")(batches[0]), expected
    # `fit` changes the weights of all layers.
    layers_of_model = {name: model.get_layer(name) for name in model.output_names}
    before = {name: layer.get_weights() for name, layer in layers_of_model.items()}
    compile_and_fit(model, batches[:1], run_eagerly=BACKEND != "jax")
    for name, layer in layers_of_model.items():
        changed = [not np.array_equal(*pair) for pair in zip(before[name], layer.get_weights())]
        assert any(changed) == (name != "sinusoids_0"), name


def compile_and_fit(model, batches, epochs=1, **settings):
    """Returns the losses by name. Lengths that differ are unknown in the graph."""
    if not model.compiled:
        model.compile(keras.optimizers.SGD(0.05), "mse", **settings)
    targets = [
        {name: 0.5 * np.ones(y.shape, "float32") for name, y in model(x).items()} for x in batches
    ]
    data = (batch for batch in itertools.cycle(list(zip(batches, targets))))
    steps = {"steps_per_epoch": len(batches), "epochs": epochs, "shuffle": False, "verbose": 0}
    return model.fit(data, **steps).history


def compiled_fit(model, batches, options, folder):
    """The losses of two steps and the weights after them are those of uncompiled steps."""
    eager, _ = make_model_and_batches(options)
    results = [
        compile_and_fit(each, batches, **how) | {v.path: v for v in each.trainable_variables}
        for each, how in ((model, {"jit_compile": True}), (eager, {"run_eagerly": True}))
    ]
    yield results


def compiled_fit_with_dropout(model, batches, options, folder):
    """Losses without dropout decrease: for a few positions, dropout changes them at random."""
    before = mean_square_errors(model, batches)
    compile_and_fit(model, batches, epochs=8, jit_compile=True)
    assert all(np.isfinite(x).all() for x in map(ops.convert_to_numpy, model.weights))
    after = mean_square_errors(model, batches)
    assert [name for name in before if after[name] >= before[name]] == []
    yield from ()


def mean_square_errors(model, batches):
    """Returns the errors of uncompiled calls, since compiling `evaluate` takes seconds."""
    outputs = [model(x) for x in batches]
    return {
        name: np.mean([np.mean((as_array(y[name]) - 0.5) ** 2) for y in outputs])
        for name in outputs[0]
    }


def compiled_predict(model, batches, options, folder):
    model.compile(jit_compile=True)
    for batch in batches:
        yield model.predict_on_batch(batch), model(batch)


# Functions of (model, batches, options, folder) that yield (values, values of plain calls).
OPERATIONS = {
    "predict_save_and_fit": predict_save_and_fit,
    "compiled_fit": compiled_fit,
    "compiled_predict": compiled_predict,
}
SELECTED = [
    Options("cases", "predict_save_and_fit", "float32", False, 0.0, "unknown"),
    Options("own_gradients", "compiled_fit", "float32", True, 0.0, "fixed"),
    Options("composed", "compiled_predict", "float32", False, 0.0, "fixed"),
    Options("relative_0", "compiled_fit", "mixed_bfloat16", True, 0.0, "changing"),
    Options("own_gradients_even", "compiled_predict", "mixed_bfloat16", True, 0.0, "changing"),
    Options("own_gradients_odd", "compiled_predict", "mixed_float16", False, 0.0, "changing"),
]
SLOW = [
    Options("composed", "compiled_fit", "float32", True, 0.0, "fixed"),
    Options("with_dropout", "compiled_fit", "float32", False, 0.25, "fixed"),
    Options("local_0", "compiled_fit", "mixed_float16", True, 0.0, "changing"),
    Options("composed_even", "compiled_predict", "mixed_bfloat16", True, 0.0, "changing"),
    Options("composed_odd", "compiled_predict", "mixed_float16", False, 0.0, "changing"),
]
if os.environ.get("FULL_COMPILE_MATRIX"):
    operations = [name for name in OPERATIONS if name.startswith("compiled")]
    settings = (TOLERANCES, (False, True), (0.0, 0.25), ("fixed", "changing"))
    SELECTED = [Options(*row) for row in itertools.product(COMPILED, operations, *settings)]
    SLOW = []


@pytest.mark.parametrize(
    "options",
    [*SELECTED, *(pytest.param(options, marks=pytest.mark.slow) for options in SLOW)],
    ids=lambda options: "-".join(map(str, options)),
)
def test_operation_on_a_model(options, tmp_path):
    operation = OPERATIONS[options.operation]
    if BACKEND == "torch" and options.operation.startswith("compiled"):
        pytest.skip("XLA compiles TensorFlow and JAX only")
    if options.dropout and operation == compiled_fit:
        operation = compiled_fit_with_dropout
    model, batches = make_model_and_batches(options)
    for found, expected in operation(model, batches, options, tmp_path):
        assert_close(found, expected, TOLERANCES[options.dtype])


def test_cases_and_compiled_models_contain_all_layers():
    assert {type(case.make()) for case in CASES.values()} == CLASSES
    compiled = {type(LAYERS[name][0].make()) for name in COMPILED if name in LAYERS}
    assert {x.__name__ for x in CLASSES - compiled} == {  # those of `layers_without_attention`
        *("TokenEmbedding", "LearnedPositionEmbedding", "SinusoidalPositionEncoding"),
        *("RelativePositionEmbedding", "FeedForward", "Residual"),
    }


# Many layers under a condition of the program.


class Condition(NamedTuple):
    """How layers are called.

    Args:
        floatx: `keras.config.floatx()` when layers are created and called.
        dtype_policy: dtype policy of the layers. Default: `floatx`.
        index_dtype: dtype of positions, offsets and labels.
        sizes: the batch size "B", and the sizes of axes of `layer_cases` that differ.
        call: "eager", on JAX in a compiled function; "graph", with unknown sizes and numeric checks
            on TensorFlow; or "symbolic", as in a functional model with unknown sizes.
    """

    floatx: str = "float32"
    dtype_policy: str | None = None
    index_dtype: str = "int32"
    sizes: dict = {}
    call: str = "eager"


CONDITIONS = {
    "float16 as floatx, symbolic": Condition(floatx="float16", call="symbolic"),
    "float64 as floatx, uint8": Condition(floatx="float64", index_dtype="uint8"),
    "mixed precision, int64": Condition(dtype_policy="mixed_float16", index_dtype="int64"),
    "int64, graph": Condition(index_dtype="int64", call="graph"),
    "no queries": Condition(sizes={"T": 0, "L": 0, "H": 0}),
    "no keys": Condition(sizes={"S": 0, "L": 0, "W": 0}),
    "no sequences": Condition(sizes={"B": 0}),
}


def _offset(layer, x, ids):
    return layer(x, x, use_causal_mask=True, query_offset=ops.max(ids, initial=0))


def _read_cache(layer, x, ids):
    cache = layer.project_cache(x)
    return layer.attend_with_cache(x[:, :1], None, cache, query_offset=ids[:, 0])[0]


def _cache(layer, x, ids):
    cache = ops.zeros((ops.shape(x)[0], 2, 19, 2, 5), dtype=layer.compute_dtype)
    index = ops.max(ids, initial=0)
    return layer.attend_with_cache(x[:, :1], x[:, :1], cache, index, query_offset=index)[0]


def _decoder_cache(layer, x, ids):
    cache = ops.zeros((ops.shape(x)[0], 2, 19, 2, 3), dtype=layer.compute_dtype)
    index = ops.max(ids, initial=0)
    arguments = {"self_attention_cache": cache, "self_attention_cache_update_index": index}
    return layer(x[:, :1], **arguments)[0]


# Calls in addition to those of CASES: name of the layer, and function of the layer and its inputs.
OTHER_CALLS = {
    "query offset": ("relative", _offset),
    "cache that is read": ("relative_window", _read_cache),
    "cache": ("relative", _cache),
    "decoder cache": ("decoder_only", _decoder_cache),
}
# Cases that add settings to another one, which take the same code.
LEFT_OUT = (
    "relative_per_head",
    "relative_left_right",
    "relative_large_k",
    "v2_masked",
    "decoder_relative_cross_attention",
)
USED_CASES = {name: case for name, case in CASES.items() if name not in LEFT_OUT}
# Tracing these layers for unknown sizes takes as long as all the others. An encoder is like them.
BLOCKS = "decoder", "decoder_only"


def call_all(layers, arrays):
    """Returns the outputs of all calls by name."""
    outputs = {name: USED_CASES[name].call(layer, arrays) for name, layer in layers.items()}
    if arrays["x"].shape[1] != 0 and not keras.backend.is_keras_tensor(arrays["x"]):
        for name, (case, call) in OTHER_CALLS.items():
            if case in layers:
                outputs[name] = call(layers[case], arrays["x"], arrays["ids"])
    return outputs


def make_layers():
    """Returns built layers by name, with the current dtype policy."""
    layers = {name: case.make() for name, case in USED_CASES.items()}
    arrays = random_inputs(
        INPUTS, np.random.default_rng(0), {"T": 2, "S": 3, "L": 3, "H": 1, "W": 2}
    )
    for name, case in USED_CASES.items():
        case.call(layers[name], arrays)
    return layers


@pytest.fixture(scope="module")
def plain_layers():
    keras.utils.set_random_seed(20180401)
    return make_layers()


@contextlib.contextmanager
def settings_of(condition):
    """Sets what a condition sets for the whole program."""
    keras.config.set_floatx(condition.floatx)
    keras.config.set_dtype_policy(condition.dtype_policy or condition.floatx)
    try:
        yield
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")


def inputs_of(condition):
    """Returns arrays of all inputs by name."""
    arrays = random_inputs(INPUTS, np.random.default_rng(1), sizes=SIZES | condition.sizes)
    batch = condition.sizes.get("B", BATCH)
    dtypes = {"float32": condition.floatx, "int32": condition.index_dtype, "bool": "bool"}
    arrays = {name: x[:batch] for name, x in arrays.items()}
    if condition.index_dtype.startswith("u"):  # There is no label -1.
        arrays["labels"] = np.abs(arrays["labels"])
    return arrays, {name: x.astype(dtypes[dtype_of(name)]) for name, x in arrays.items()}


def run(condition, layers, arrays):
    """Returns the outputs of all calls, called as the condition describes."""
    compute = functools.partial(call_all, layers)
    if BACKEND == "jax" and condition.call != "symbolic":
        import jax

        return jax.jit(compute)(arrays)
    if BACKEND == "tensorflow" and condition.call == "graph":
        return _in_graph(compute, arrays)
    return compute({name: ops.convert_to_tensor(x) for name, x in arrays.items()})


def _in_graph(compute, arrays):
    """Returns the results of a `tf.function` with unknown sizes that checks all numbers."""
    import tensorflow as tf

    specs = {
        name: tf.TensorSpec(
            (None, *(None if axis in SIZES else axis for axis in INPUTS[name])), x.dtype
        )
        for name, x in arrays.items()
    }
    tf.debugging.enable_check_numerics()
    try:
        return tf.function(compute, input_signature=[specs], autograph=False)(arrays)
    finally:
        tf.debugging.disable_check_numerics()


@pytest.mark.parametrize("name", CONDITIONS)
def test_layers_under_a_condition(name, plain_layers):
    condition = CONDITIONS[name]
    if BACKEND == "jax" and condition.floatx == "float64":
        pytest.skip("JAX has float64 only with JAX_ENABLE_X64=1")
    arrays, converted = inputs_of(condition)
    if condition.call == "graph":
        plain_layers = {key: x for key, x in plain_layers.items() if key not in BLOCKS}
    with settings_of(condition):
        layers = plain_layers
        if keras.config.dtype_policy().name != "float32":
            layers = make_layers()
            for key, layer in layers.items():
                layer.set_weights(plain_layers[key].get_weights())
        if condition.call == "symbolic":
            outputs = call_all(layers, symbolic_inputs(INPUTS))
            assert {x.dtype for x in outputs.values()} == {condition.floatx}
            return
        found = run(condition, layers, converted)
    if condition.sizes:
        assert all(np.isfinite(as_array(x)).all() for x in found.values())
    else:
        expected = run(Condition(), plain_layers, arrays)
        assert_close(found, expected, 2e-2 if condition.dtype_policy else 1e-5)
