"""Tests that layers and models compiled by XLA give the values of uncompiled ones.

The fast tests compile one model with all layers in float32 for known lengths, and each layer in
bfloat16 or float16 for changing lengths. `test_export.py` exports a compiled model. The slow tests
add dropout. `make test-matrix` tests all combinations.
"""

import functools
import itertools
import os
from typing import NamedTuple

import keras
import numpy as np
import pytest
from keras import ops
from layer_cases import BATCH, CASES, INPUTS, WIDTH, random_inputs, symbolic_inputs

from t2t_relpos import layers
from t2t_relpos.models import CausalLM, Transformer, TransformerConfig

pytestmark = pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="XLA compiles TensorFlow and JAX only"
)
VOCAB_SIZE = 11
BLOCK = {"intermediate_dim": 7, "num_heads": 2, "max_relative_position": 2}
LENGTHS = {"fixed": (5, 5), "changing": (9, 5)}
# Largest difference, relative to the largest value.
TOLERANCES = {"float32": 1e-5, "mixed_bfloat16": 3e-2, "mixed_float16": 4e-3}
OPERATIONS = ("fit", "predict", "export")


class Options(NamedTuple):
    """A combination of options.

    Args:
        layers: a key of OUTPUTS or GROUPS.
        operation: one of OPERATIONS.
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
    case = CASES[name]
    return case.call(case.make(dropout=dropout, name=name), inputs, masks)


def layers_without_attention(inputs, masks, dropout):
    embedding = layers.TokenEmbedding(VOCAB_SIZE, WIDTH)
    x = embedding(inputs["ids"])
    x = layers.LearnedPositionEmbedding(31)(layers.SinusoidalPositionEncoding()(x))
    vectors = layers.RelativePositionEmbedding(2, depth=WIDTH)(x)
    x = layers.FeedForward(7, dropout=dropout)(ops.einsum("bsd,tsd->btd", x, vectors))
    x = layers.Residual(dropout=dropout)(x, sublayer=ops.tanh)
    return embedding(x, reverse=True)


@keras.saving.register_keras_serializable(package="tests")
class PackedEncoder(keras.layers.Layer):
    """An encoder block that packs its inputs."""

    def __init__(self, dropout, **kwargs):
        super().__init__(**kwargs)
        self.block = layers.TransformerEncoder(**BLOCK, dropout=dropout)

    def build(self, x_shape, is_token_shape):
        self.block.build(x_shape)

    def compute_output_shape(self, x_shape, is_token_shape):
        # JAX can't infer it for an unknown batch size and length.
        return x_shape

    def call(self, x, is_token, training=None):
        packing = layers.Packing(is_token, capacity=BATCH * 9)
        return packing.unpack(self.block(packing.pack(x), packing=packing, training=training))


def packed_encoder(inputs, masks, dropout):
    return PackedEncoder(dropout)(inputs["x"], inputs["x_mask"])


SMALL = {"hidden_dim": WIDTH, "intermediate_dim": 7, "num_heads": 2, "max_relative_position": 2}


def transformer(inputs, masks, dropout):
    sizes = {"vocab_size": VOCAB_SIZE, "num_encoder_layers": 1, "num_decoder_layers": 1}
    model = Transformer(TransformerConfig(**SMALL, **sizes, dropout=dropout))
    return model({"inputs": inputs["ids"], "targets": inputs["ids"]})


def causal_lm(inputs, masks, dropout):
    return CausalLM(VOCAB_SIZE, 1, **SMALL, dropout=dropout)(inputs["ids"])


IN_CASES = (
    "relative",
    "relative_flash",
    "relative_window",
    "v2",
    "v2_masked",
    "2d",
    "local",
    "relations",
    "encoder",
    "decoder_relative_cross_attention",
)
# Functions of (inputs, masks, dropout).
OUTPUTS = {name: functools.partial(case_outputs, name) for name in IN_CASES} | {
    outputs.__name__: outputs
    for outputs in (layers_without_attention, packed_encoder, transformer, causal_lm)
}
ALL = [
    Options(*row)
    for row in itertools.product(
        OUTPUTS, OPERATIONS, TOLERANCES, (False, True), (0.0, 0.25), LENGTHS
    )
]


GROUPS = {
    "all": tuple(OUTPUTS),
    # Other layers apply dropout in the same way.
    "with_dropout": (
        "relative_flash",
        "relative_window",
        "2d",
        "local",
        "relations",
        "decoder_relative_cross_attention",
        "packed_encoder",
    ),
}
HALF = ("mixed_bfloat16", "mixed_float16")
DROPOUT = Options("with_dropout", "fit", "float32", False, 0.25, "fixed")
SELECTED = [
    Options("all", "fit", "float32", True, 0.0, "fixed"),
    DROPOUT,
    Options("all", "predict", "float32", False, 0.0, "fixed"),
    Options("relative", "fit", "mixed_bfloat16", True, 0.0, "changing"),
    Options("local", "fit", "mixed_float16", True, 0.0, "changing"),
    *(
        Options(name, "predict", HALF[i % 2], i % 3 == 0, 0.0, "changing")
        for i, name in enumerate(OUTPUTS)
    ),
]
if os.environ.get("FULL_COMPILE_MATRIX"):
    SELECTED = ALL


def make_model_and_batches(options):
    """Returns a model whose outputs are a dict, and two batches of its inputs."""
    # Equal names of variables in all models.
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    keras.config.set_dtype_policy(options.dtype)
    batches = [inputs_of(length, options.masks) for length in LENGTHS[options.lengths]]
    symbols = symbolic_inputs(INPUTS)
    if options.lengths == "fixed":
        symbols = {
            name: keras.Input(x.shape[1:], dtype=str(x.dtype), name=name)
            for name, x in batches[0].items()
        }
    names = GROUPS.get(options.layers, (options.layers,))
    outputs = {name: OUTPUTS[name](symbols, options.masks, options.dropout) for name in names}
    return keras.Model(symbols, outputs), batches


def inputs_of(length, masks):
    """Returns a batch of all inputs. The input `y` is longer than `x`."""
    rng = np.random.default_rng(length)
    sizes = {"T": length, "S": length + 2, "L": length, "H": length, "W": 3}
    batch = random_inputs(INPUTS, rng, sizes)
    batch["ids"] = np.maximum(batch["ids"], 1)
    for name, array in batch.items():
        if masks and array.dtype != "float32" and name != "labels":
            array[1, 3:] = array[2, 1:] = 0
    return batch


def compiled_model_and_data(options, **compile_options):
    """Returns a model that was compiled for `fit`, and its data."""
    model, batches = make_model_and_batches(options)
    data = [
        (x, {name: 0.5 * np.ones(y.shape, "float32") for name, y in model(x).items()})
        for x in batches
    ]
    model.compile(keras.optimizers.SGD(0.05), "mse", **compile_options)
    return model, data


def fit(model, data, epochs=1):
    """Returns the losses of each epoch by name. Lengths that differ are unknown in the graph."""
    batches = (batch for batch in itertools.cycle(data))
    options = {"steps_per_epoch": len(data), "epochs": epochs, "shuffle": False, "verbose": 0}
    return model.fit(batches, **options).history


def losses_and_weights(options, **compile_options):
    """Returns the losses of two steps by output and the weights after them by path."""
    model, data = compiled_model_and_data(options, **compile_options)
    return fit(model, data) | {v.path: v for v in model.trainable_variables}


def mean_square_errors(model, data):
    """Returns the errors of uncompiled calls, since compiling `evaluate` takes seconds."""
    outputs = [(model(x), targets) for x, targets in data]
    return {
        name: np.mean([np.mean((as_array(y[name]) - t[name]) ** 2) for y, t in outputs])
        for name in outputs[0][1]
    }


def as_array(x):
    return ops.convert_to_numpy(ops.cast(x, "float32"))


def assert_close(found, expected, dtype):
    """Asserts that the values of two dicts are close."""
    assert found.keys() == expected.keys()
    for name in expected:
        a, b = as_array(found[name]), as_array(expected[name])
        assert np.isfinite(a).all(), name
        atol = TOLERANCES[dtype] * max(np.abs(b).max(), 1)
        np.testing.assert_allclose(a, b, atol=atol, err_msg=name)


def options_of(operation):
    return pytest.mark.parametrize(
        "options",
        [
            pytest.param(options, marks=[pytest.mark.slow] if options == DROPOUT else [])
            for options in SELECTED
            if options.operation == operation
        ],
        ids=lambda options: "-".join(map(str, options)),
    )


def test_model_contains_all_layers():
    classes = {
        value
        for value in vars(layers).values()
        if isinstance(value, type) and issubclass(value, keras.Layer)
    }
    model, _ = make_model_and_batches(Options("all", "fit", "float32", True, 0.0, "fixed"))
    assert classes <= {type(layer) for layer in model._flatten_layers()}


@options_of("fit")
def test_compiled_fit(options):
    if options.dropout:
        # Compare losses without dropout: for a few positions, dropout changes the loss at random.
        model, data = compiled_model_and_data(options, jit_compile=True)
        before = mean_square_errors(model, data)
        fit(model, data, epochs=8)
        assert all(np.isfinite(x).all() for x in map(ops.convert_to_numpy, model.weights))
        after = mean_square_errors(model, data)
        assert [name for name in before if after[name] >= before[name]] == []
    else:
        expected = losses_and_weights(options, run_eagerly=True)
        assert_close(losses_and_weights(options, jit_compile=True), expected, options.dtype)


@options_of("predict")
def test_compiled_predict(options):
    model, batches = make_model_and_batches(options)
    model.compile(jit_compile=True)
    for batch in batches:
        assert_close(model.predict_on_batch(batch), model(batch), options.dtype)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="tests an export of TensorFlow")
@options_of("export")
def test_export_of_compiled_model(options, tmp_path):
    import tensorflow as tf

    model, batches = make_model_and_batches(options)
    model.compile("sgd", "mse", jit_compile=True)
    model.export(str(tmp_path), verbose=False)
    exported = tf.saved_model.load(str(tmp_path))
    for batch in batches:
        assert_close(exported.serve(batch), model(batch), options.dtype)
