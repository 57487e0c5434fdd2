"""Tests the blocks as drop-in replacements for KerasHub's: only the import changes."""

import inspect

import numpy as np
import pytest
from keras import ops

from t2t_relpos import layers as ours

SOURCE = np.random.default_rng(1).normal(size=(3, 11, 6)).astype("float32")
TARGET = np.random.default_rng(2).normal(size=(3, 7, 6)).astype("float32")
SOURCE_MASK = np.arange(11) < np.array([[11], [5], [2]])
TARGET_MASK = np.arange(7) < np.array([[7], [3], [5]])


@pytest.fixture(scope="module")
def keras_hub_layers():
    return pytest.importorskip("keras_hub").layers


def make(library, block, **settings):
    if library is ours:
        settings |= {"max_relative_position": 3}
    return getattr(library, block)(intermediate_dim=13, num_heads=2, **settings)


def copy_weights(theirs, layer):
    """Copies the weights of a KerasHub block to our block and sets its tables to zero."""
    names = {
        "self_attention": "_self_attention_layer",
        "cross_attention": "_cross_attention_layer",
    }
    for name, their_name in names.items():
        attention = getattr(theirs, their_name, None)
        if attention is not None:
            for part in ("query", "key", "value", "output"):
                weights = getattr(attention, f"{part}_dense").get_weights()
                getattr(getattr(layer, name), f"{part}_dense").set_weights(weights)
            norm = getattr(theirs, f"{their_name}_norm")
            getattr(layer, f"{name}_residual").norm.set_weights(norm.get_weights())
    for variable in layer.variables:
        if variable.name == "table":
            variable.assign(np.zeros(variable.shape))
    layer.feed_forward_residual.norm.set_weights(theirs._feedforward_layer_norm.get_weights())
    layer.feed_forward.inner.set_weights(theirs._feedforward_intermediate_dense.get_weights())
    layer.feed_forward.outer.set_weights(theirs._feedforward_output_dense.get_weights())


@pytest.mark.parametrize("block", ["TransformerEncoder", "TransformerDecoder"])
@pytest.mark.parametrize("method", ["__init__", "call"])
def test_block_arguments_start_with_those_of_keras_hub(block, method, keras_hub_layers):
    def positional(library):
        function = getattr(getattr(library, block), method)
        parameters = inspect.signature(function).parameters.values()
        return [(p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

    expected = positional(keras_hub_layers)
    assert positional(ours)[: len(expected)] == expected


@pytest.mark.parametrize("normalize_first", [True, False])
def test_encoder_equals_keras_hub(normalize_first, keras_hub_layers, rng):
    settings = {"normalize_first": normalize_first, "activation": "gelu"}
    attention_mask = np.tril(np.ones((3, 11, 11), bool))
    found = []
    theirs = make(keras_hub_layers, "TransformerEncoder", **settings)
    theirs(SOURCE)
    theirs.set_weights([rng.normal(size=v.shape) for v in theirs.variables])
    layer = make(ours, "TransformerEncoder", **settings)
    layer(SOURCE)
    copy_weights(theirs, layer)
    for block in (theirs, layer):
        found.append(
            block(
                SOURCE,
                padding_mask=SOURCE_MASK,
                attention_mask=attention_mask,
                return_attention_scores=True,
            )
        )
    for theirs, outputs in zip(*found, strict=True):
        np.testing.assert_allclose(outputs, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("with_encoder", [True, False])
def test_decoder_equals_keras_hub(with_encoder, keras_hub_layers, rng):
    sequences = (TARGET, SOURCE) if with_encoder else (TARGET,)
    masks = {"decoder_padding_mask": TARGET_MASK}
    if with_encoder:
        masks["encoder_padding_mask"] = SOURCE_MASK
    theirs = make(keras_hub_layers, "TransformerDecoder")
    theirs(*sequences)
    theirs.set_weights([rng.normal(size=v.shape) for v in theirs.variables])
    layer = make(ours, "TransformerDecoder")
    layer(*sequences)
    copy_weights(theirs, layer)
    np.testing.assert_allclose(
        ops.convert_to_numpy(layer(*sequences, **masks))[TARGET_MASK],
        ops.convert_to_numpy(theirs(*sequences, **masks))[TARGET_MASK],
        atol=1e-4,
        rtol=1e-4,
    )


def decode_with_caches(block, encoder_sequence):
    """Returns the outputs of all positions, decoded one by one with KerasHub's interface."""
    caches = {"self_attention_cache": np.zeros((3, 2, 7, 2, 3), "float32")}
    extra = {}
    if encoder_sequence is not None:
        caches["cross_attention_cache"] = np.zeros((3, 2, 11, 2, 3), "float32")
        extra = {"cross_attention_cache_update_index": 0}
    outputs = []
    for t in range(7):
        output, *new = block(
            TARGET[:, t : t + 1],
            encoder_sequence,
            self_attention_cache_update_index=t,
            **caches,
            **extra,
        )
        caches = dict(zip(caches, new, strict=True))
        extra = dict.fromkeys(extra)
        outputs.append(ops.convert_to_numpy(output))
    return np.concatenate(outputs, axis=1), caches


@pytest.mark.parametrize("encoder_sequence", [SOURCE, None])
def test_decoder_caches_equal_keras_hub(encoder_sequence, keras_hub_layers):
    theirs = make(keras_hub_layers, "TransformerDecoder")
    layer = make(ours, "TransformerDecoder")
    sequences = (TARGET,) if encoder_sequence is None else (TARGET, encoder_sequence)
    theirs(*sequences), layer(*sequences)
    # With random tables, steps equal our full call. With zero tables, they equal KerasHub's steps.
    outputs, _ = decode_with_caches(layer, encoder_sequence)
    np.testing.assert_allclose(outputs, layer(*sequences), atol=1e-5)
    copy_weights(theirs, layer)
    expected, their_caches = decode_with_caches(theirs, encoder_sequence)
    outputs, caches = decode_with_caches(layer, encoder_sequence)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    for name, cache in caches.items():
        np.testing.assert_allclose(cache, their_caches[name], atol=1e-5)
