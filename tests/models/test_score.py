"""Tests scores and alignments of sentence pairs."""

import re

import keras
import numpy as np
import pytest
from comparisons import assert_all_close
from keras import ops
from small_transformers import BATCH, SOURCE, TARGETS, shared_transformer, small_causal_lm

from t2t_relpos.models import Transformer
from t2t_relpos.models.attention_maps import record_attention

LENGTHS = [7, 3, 2]
PAIR = {"relative_cross_attention": True, "max_relative_position": (1, 2)}


def make_transformer(**settings):
    return shared_transformer(0.3, num_decoder_layers=3, num_heads=2, **settings)


def test_score_takes_lists_of_ids_as_generate_does():
    model, language_model = make_transformer(), small_causal_lm()
    pairs = [
        (model.score(SOURCE.tolist(), TARGETS.tolist()), model.score(SOURCE, TARGETS)),
        (language_model.score(TARGETS.tolist()), language_model.score(TARGETS)),
    ]
    for found, expected in pairs:
        assert_all_close(found, expected, atol=0)


@pytest.mark.parametrize(
    "settings, layer, number",
    [({}, 0, 0), ({}, -2, 1), ({}, None, 2), (PAIR, None, 2)],
    ids=str,
)
def test_alignments_average_the_heads_of_a_layer(settings, layer, number):
    model = make_transformer(**settings)
    scores, alignments = model.score(SOURCE, TARGETS, return_alignments=True, layer=layer)
    assert alignments.shape == (3, 7, 5)
    alignments = ops.convert_to_numpy(alignments)
    np.testing.assert_array_equal(alignments[SOURCE[:, None].repeat(7, 1) == 0], 0.0)
    for sentence, length in enumerate(LENGTHS):
        real = np.count_nonzero(SOURCE[sentence])
        pair = {"inputs": SOURCE[[sentence], :real], "targets": TARGETS[[sentence], :length]}
        with record_attention(model.decoder_layers[number].cross_attention) as maps:
            model(pair)
        expected = maps[0].weights.mean(0)
        np.testing.assert_allclose(alignments[sentence, :length, :real], expected, atol=1e-5)
    plain = model.score(SOURCE, TARGETS)
    np.testing.assert_allclose(scores.token_scores, plain.token_scores, atol=1e-5)


def test_results_of_a_bfloat16_model_are_float32():
    model = make_transformer()
    half = Transformer(model.config, dtype="mixed_bfloat16")
    half.set_weights(model.get_weights())
    exact, low = (m.score(SOURCE, TARGETS, return_alignments=True) for m in (model, half))
    for result in (half(BATCH), low[1]):
        assert keras.backend.standardize_dtype(result.dtype) == "float32"
    np.testing.assert_allclose(half(BATCH), model(BATCH), atol=0.2)
    np.testing.assert_allclose(low[1], exact[1], atol=0.05)
    np.testing.assert_allclose(low[0].scores, exact[0].scores, rtol=0.05)


@pytest.mark.parametrize("layer", [3, -4, 1.0, True, "x"])
@pytest.mark.parametrize("name", ["layer", "attention_layer"])
def test_an_invalid_layer_is_rejected(name, layer):
    model = make_transformer()
    message = (
        f"Expected `{name}` to be an int from -3 to 2, the index of one of 3 layers. "
        f"Received: {name}={layer!r}."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        if name == "layer":
            model.score(SOURCE, TARGETS, return_alignments=True, layer=layer)
        else:
            model.logits_and_attention(BATCH, attention_layer=layer)


def test_score_rejects_a_layer_without_alignments():
    message = "Expected `layer` only with `return_alignments=True`.*Received: layer=0"
    with pytest.raises(ValueError, match=message):
        make_transformer().score(SOURCE, TARGETS, layer=0)


@pytest.mark.parametrize("layer", [1, -2, np.int64(1), np.int32(-2)], ids=repr)
def test_both_arguments_take_the_same_indices(layer):
    model = make_transformer()
    _, alignments = model.score(SOURCE, TARGETS, return_alignments=True, layer=layer)
    _, attention = model.logits_and_attention(BATCH, attention_layer=layer)
    _, expected = model.logits_and_attention(BATCH, attention_layer=1)
    np.testing.assert_array_equal(attention, expected)
    np.testing.assert_allclose(alignments, ops.mean(expected, axis=1), atol=1e-6)
