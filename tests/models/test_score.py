"""Tests scores and alignments of sentence pairs."""

import keras
import numpy as np
import pytest
from keras import ops
from small_transformers import random_transformer

from t2t_relpos.decoding import beam_search, score_tokens
from t2t_relpos.models import Transformer

SOURCE = np.array([[5, 6, 7, 9, 1], [9, 1, 0, 0, 0], [8, 4, 1, 0, 0]], "int32")
TARGETS = np.array([[3, 4, 5, 6, 7, 8, 1], [8, 9, 1, 0, 0, 0, 0], [2, 1, 0, 0, 0, 0, 0]], "int32")
LENGTHS = [7, 3, 2]
VARIANTS = [
    {},
    {"position": "sinusoidal"},
    {"position": "none", "normalize_first": False},
    {"position": "learned", "tie_embeddings": False},
    {"relative_cross_attention": True, "share_heads": False},
    {"dropout": 0.3, "attention_dropout": 0.2},
]


@pytest.fixture(params=VARIANTS, ids=str)
def model(request):
    return make_transformer(**request.param)


def make_transformer(**settings):
    return random_transformer(0.3, num_decoder_layers=3, num_heads=2, **settings)


def test_score_equals_log_probabilities_of_the_call(model):
    logits = ops.convert_to_numpy(model({"inputs": SOURCE, "targets": TARGETS})).astype("float64")
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    scores = model.score(SOURCE, TARGETS, alpha=0.6)
    for sentence, length in enumerate(LENGTHS):
        expected = log_probs[sentence, np.arange(length), TARGETS[sentence, :length]]
        np.testing.assert_allclose(scores.token_scores[sentence][:length], expected, atol=1e-5)
        np.testing.assert_array_equal(scores.token_scores[sentence][length:], 0.0)
        penalty = ((5 + length) / 6) ** 0.6
        np.testing.assert_allclose(scores.scores[sentence], expected.sum() / penalty, atol=1e-5)
    np.testing.assert_array_equal(scores.lengths, LENGTHS)


def test_score_equals_scores_of_decoding_steps(model):
    state, previous, steps = model.encode(SOURCE, 7), np.zeros(3, "int32"), []
    for t in range(7):
        logits, state = model.step(previous, state)
        steps.append(logits)
        previous = TARGETS[:, t]
    expected = score_tokens(ops.stack(steps, axis=1), TARGETS)
    np.testing.assert_allclose(
        model.score(SOURCE, TARGETS).token_scores, expected.token_scores, atol=2e-5
    )


def test_score_equals_beam_search_scores(model):
    found = beam_search(model.step, model.encode(SOURCE, 7), 3, 7, beam_size=3, num_results=2)
    for n in range(2):
        scores = model.score(SOURCE, found.ids[:, n], alpha=0.6)
        # If fewer than `num_results` outputs finished, the remaining entries are empty.
        real = ops.convert_to_numpy(found.scores)[:, n] > -1e6
        assert n > 0 or real.all()
        np.testing.assert_allclose(
            ops.convert_to_numpy(scores.scores)[real],
            ops.convert_to_numpy(found.scores)[real, n],
            atol=2e-5,
        )


def expected_attention(model, layer):
    """Returns cross-attention weights `[B, N, T, S]`, computed with NumPy from the layer inputs."""
    inputs = {}
    attention = model.decoder_layers[layer].cross_attention
    original_call = attention.call

    def call(query, value, **arguments):
        inputs.update(query=query, key=value)
        return original_call(query, value, **arguments)

    attention.call = call
    try:
        model({"inputs": SOURCE, "targets": TARGETS})
    finally:
        del attention.call
    query, key = (
        ops.convert_to_numpy(project(inputs[name]))
        for name, project in (("query", attention.project_query), ("key", attention.project_key))
    )
    logits = np.einsum("bnth,bnsh->bnts", query, key)
    if attention.key_embedding is not None:
        table = ops.convert_to_numpy(attention.key_embedding.table)
        ids = np.clip(np.arange(5) - np.arange(7)[:, None], -3, 3) + 3
        vectors = table[..., ids, :] if table.ndim == 3 else table[None, ids]
        logits = logits + np.einsum(
            "bnth,ntsh->bnts", query, np.broadcast_to(vectors, (2, 7, 5, query.shape[-1]))
        )
    weights = np.exp(logits) * (SOURCE != 0)[:, None, None]
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("layer, number", [(None, 2), (-1, 2), (0, 0), (-2, 1)])
def test_alignments_average_the_heads_of_a_layer(model, layer, number):
    scores, alignments = model.score(SOURCE, TARGETS, return_alignments=True, layer=layer)
    assert alignments.shape == (3, 7, 5)
    np.testing.assert_allclose(alignments, expected_attention(model, number).mean(1), atol=1e-5)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(alignments)[SOURCE[:, None].repeat(7, 1) == 0], 0.0
    )
    plain = model.score(SOURCE, TARGETS)
    np.testing.assert_allclose(scores.token_scores, plain.token_scores, atol=1e-5)


def test_alignments_are_independent_of_later_targets(model):
    _, full = model.score(SOURCE, TARGETS, return_alignments=True)
    _, prefix = model.score(SOURCE, TARGETS[:, :3], return_alignments=True)
    np.testing.assert_allclose(prefix, full[:, :3], atol=1e-5)


def test_score_of_a_bfloat16_model_is_float32():
    model = make_transformer()
    half = Transformer(model.config, dtype="mixed_bfloat16")
    for ours, theirs in zip(half.variables, model.variables, strict=True):
        ours.assign(theirs)
    exact, low = (m.score(SOURCE, TARGETS, return_alignments=True) for m in (model, half))
    assert keras.backend.standardize_dtype(low[1].dtype) == "float32"
    np.testing.assert_allclose(low[1], exact[1], atol=0.05)
    np.testing.assert_allclose(low[0].scores, exact[0].scores, rtol=0.05)


@pytest.mark.parametrize("layer", [3, -4, 1.0])
def test_score_rejects_an_invalid_layer(layer):
    message = (
        rf"Expected `layer` to be an int from -3 to 2: the decoder has 3 layers. Received: {layer}"
    )
    with pytest.raises(ValueError, match=message):
        make_transformer().score(SOURCE, TARGETS, return_alignments=True, layer=layer)


def test_score_rejects_layer_without_return_alignments():
    message = "Expected `layer` only with `return_alignments=True`.*Received: layer=0"
    with pytest.raises(ValueError, match=message):
        make_transformer().score(SOURCE, TARGETS, layer=0)
