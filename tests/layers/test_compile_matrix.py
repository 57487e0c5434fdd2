"""Tests that layers and models compiled by XLA give the values of uncompiled ones.

The fast tests cover every pair of options. `make test-matrix` tests all combinations.
"""

import functools
import itertools
import os
import random
from typing import NamedTuple

import keras
import numpy as np
import pytest
from keras import ops
from layer_cases import BATCH, CASES, WIDTH, random_inputs, symbolic_inputs

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
if keras.backend.backend() == "jax":
    OPERATIONS = ("fit", "predict")


class Options(NamedTuple):
    """A combination of options.

    Args:
        model: a key of MODELS.
        operation: one of OPERATIONS.
        dtype: a key of TOLERANCES.
        masks: whether the model has mask inputs, or a causal mask.
        dropout: rate of all dropouts.
        lengths: a key of LENGTHS.
    """

    model: str
    operation: str
    dtype: str
    masks: bool
    dropout: float
    lengths: str


def layer_model(name, masks, dropout):
    """Returns a model of a layer whose inputs are a dict."""
    case = CASES[name]
    symbols = symbolic_inputs(case.input_names(masks))
    return keras.Model(symbols, case.call(case.make(dropout=dropout), symbols, masks))


def layers_without_attention(masks, dropout):
    symbols, embedding = symbolic_inputs(["ids"]), layers.TokenEmbedding(VOCAB_SIZE, WIDTH)
    x = embedding(symbols["ids"])
    x = layers.LearnedPositionEmbedding(31)(layers.SinusoidalPositionEncoding()(x))
    vectors = layers.RelativePositionEmbedding(2, depth=WIDTH)(x)
    x = layers.FeedForward(7, dropout=dropout)(ops.einsum("bsd,tsd->btd", x, vectors))
    x = layers.Residual(dropout=dropout)(x, sublayer=ops.tanh)
    return keras.Model(symbols, embedding(x, reverse=True))


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


def packed_encoder(masks, dropout):
    symbols = symbolic_inputs(["x", "x_mask"])
    return keras.Model(symbols, PackedEncoder(dropout)(*symbols.values()))


SMALL = {"hidden_dim": WIDTH, "intermediate_dim": 7, "num_heads": 2, "max_relative_position": 2}


def transformer(masks, dropout):
    sizes = {"vocab_size": VOCAB_SIZE, "num_encoder_layers": 1, "num_decoder_layers": 1}
    return Transformer(TransformerConfig(**SMALL, **sizes, dropout=dropout))


def causal_lm(masks, dropout):
    return CausalLM(VOCAB_SIZE, 1, **SMALL, dropout=dropout)


LAYERS = (
    "relative",
    "relative, flash",
    "relative, window",
    "v2",
    "v2, masked",
    "2d",
    "local",
    "relations",
    "encoder",
    "decoder, relative cross-attention",
)
MODELS = {name: functools.partial(layer_model, name) for name in LAYERS} | {
    make.__name__: make
    for make in (layers_without_attention, packed_encoder, transformer, causal_lm)
}
ALL = [
    Options(*row)
    for row in itertools.product(
        MODELS, OPERATIONS, TOLERANCES, (False, True), (0.0, 0.25), LENGTHS
    )
]


def pairs(row):
    return set(itertools.combinations(enumerate(row), 2))


def covering(rows):
    """Returns a small subset of the rows that contains every pair of options."""
    rows, chosen, missing = list(rows), [], set().union(*map(pairs, rows))
    # Shuffle the rows: in the order of ALL, the options of the chosen rows would be correlated.
    random.Random(0).shuffle(rows)
    while missing:
        chosen.append(max(rows, key=lambda row: len(pairs(row) & missing)))
        missing -= pairs(chosen[-1])
    return chosen


SELECTED = ALL if os.environ.get("FULL_COMPILE_MATRIX") else covering(ALL)


def inputs_of(model, length, masks):
    """Returns a batch for a model. The input `y` is longer than `x`."""
    rng = np.random.default_rng(length)
    sizes = {"T": length, "S": length + 2, "L": length, "H": length, "W": 3}
    if isinstance(model, (Transformer, CausalLM)):
        names = ("inputs", "targets") if isinstance(model, Transformer) else ("ids",)
        batch = {name: rng.integers(1, 7, (BATCH, length)).astype("int32") for name in names}
    else:
        batch = random_inputs([x.name for x in model.inputs], rng, sizes)
    for name, array in batch.items():
        if masks and array.dtype != "float32" and name != "labels":
            array[1, 3:] = array[2, 1:] = 0
    return batch["ids"] if isinstance(model, CausalLM) else batch


class Batches(keras.utils.PyDataset):
    """A dataset with the batches for `fit`."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def make_model_and_batches(options):
    keras.utils.set_random_seed(3)
    keras.config.set_dtype_policy(options.dtype)
    model = MODELS[options.model](options.masks, options.dropout)
    batches = [inputs_of(model, n, options.masks) for n in LENGTHS[options.lengths]]
    return model, batches


def compiled_model_and_data(options, **compile_options):
    """Returns a model that was compiled for `fit`, and its data."""
    model, batches = make_model_and_batches(options)
    data = Batches([(x, 0.5 * np.ones(model(x).shape, "float32")) for x in batches])
    model.compile(keras.optimizers.SGD(0.05), "mse", **compile_options)
    return model, data


def losses_and_weights(options, epochs, **compile_options):
    """Returns the losses of all epochs and the weights after them."""
    model, data = compiled_model_and_data(options, **compile_options)
    losses = model.fit(data, epochs=epochs, shuffle=False, verbose=0).history["loss"]
    return [np.array(losses), *map(ops.convert_to_numpy, model.trainable_variables)]


def mean_square_error(model, data):
    """Returns the error of uncompiled calls, since compiling `evaluate` takes seconds."""
    errors = [ops.cast(model(x), "float32") - y for x, y in data.batches]
    return np.mean([ops.convert_to_numpy(ops.mean(ops.square(error))) for error in errors])


def assert_close(found, expected, dtype):
    for a, b in zip(found, expected, strict=True):
        a, b = (ops.convert_to_numpy(ops.cast(x, "float32")) for x in (a, b))
        assert np.isfinite(a).all()
        np.testing.assert_allclose(a, b, atol=TOLERANCES[dtype] * max(np.abs(b).max(), 1))


def options_of(operation):
    return pytest.mark.parametrize(
        "options",
        [options for options in SELECTED if options.operation == operation],
        ids=lambda options: "-".join(map(str, options)),
    )


def test_models_contain_all_layers():
    classes = {
        value
        for value in vars(layers).values()
        if isinstance(value, type) and issubclass(value, keras.Layer)
    }
    models = [make(True, 0.0) for make in MODELS.values()]
    found = {type(layer) for model in models for layer in model._flatten_layers()}
    assert classes <= found


@options_of("fit")
def test_compiled_fit(options):
    if options.dropout:
        # Compare losses without dropout: for a few positions, dropout changes the loss at random.
        model, data = compiled_model_and_data(options, jit_compile=True)
        before = mean_square_error(model, data)
        model.fit(data, epochs=8, shuffle=False, verbose=0)
        assert all(np.isfinite(x).all() for x in map(ops.convert_to_numpy, model.weights))
        assert mean_square_error(model, data) < before
    else:
        expected = losses_and_weights(options, 2, run_eagerly=True)
        assert_close(losses_and_weights(options, 2, jit_compile=True), expected, options.dtype)


@options_of("predict")
def test_compiled_predict(options):
    model, batches = make_model_and_batches(options)
    expected = list(map(model, batches))
    model.compile(jit_compile=True)
    assert_close(list(map(model.predict_on_batch, batches)), expected, options.dtype)


@options_of("export")
def test_export_of_compiled_model(options, tmp_path):
    import tensorflow as tf

    model, batches = make_model_and_batches(options)
    expected = list(map(model, batches))
    model.compile("sgd", "mse", jit_compile=True)
    model.export(str(tmp_path), verbose=False)
    exported = tf.saved_model.load(str(tmp_path))
    assert_close(list(map(exported.serve, batches)), expected, options.dtype)
