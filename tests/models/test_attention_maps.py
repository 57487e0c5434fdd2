"""Tests of attention maps, compared with the layers' outputs and the formula of the logits."""

import numpy as np
import pytest
from keras import ops

from t2t_relpos.models.attention_maps import (
    read_table_norms,
    record_attention,
    record_attention_maps,
    softmax,
)

SOURCE, TARGET = [5, 7, 9, 22, 4, 7, 1], [3, 11, 2, 6, 1]
SHAPES = {"encoder": (2, 7, 7), "decoder": (2, 5, 5), "cross": (2, 5, 7)}


def test_weights_are_softmax_of_content_and_position(transformer):
    maps = record_attention_maps(transformer, SOURCE, TARGET)
    num_layers = {kind: len(layers) for kind, layers in maps.items()}
    assert num_layers == {"encoder": 2, "decoder": 3, "cross": 3}
    config = transformer.config
    for kind, layers in maps.items():
        visible = np.ones(SHAPES[kind][1:], bool)
        visible = np.tril(visible) if kind == "decoder" else visible
        has_tables = config.relative and (kind != "cross" or config.relative_cross_attention)
        for layer in layers:
            np.testing.assert_array_equal(layer.visible, visible)
            assert layer.weights.shape == layer.content.shape == SHAPES[kind]
            np.testing.assert_allclose(layer.weights.sum(-1), 1, rtol=1e-6)
            assert (layer.weights[:, ~visible] == 0).all()
            assert (layer.position is not None) == (has_tables and config.use_key_table)
            logits = layer.content if layer.position is None else layer.content + layer.position
            expected = softmax(logits, visible)
            np.testing.assert_allclose(layer.weights, expected, rtol=1e-5, atol=1e-9)


def test_map_of_a_layer_equals_the_formula(transformer, rng):
    attention = transformer.encoder_layers[0].self_attention
    x = rng.normal(size=(1, 7, 14)).astype("float32")
    _, scores = attention(x, x, return_attention_scores=True)
    with record_attention(attention) as maps:
        attention(x, x)
    np.testing.assert_allclose(maps[0].weights, scores[0], rtol=1e-5, atol=1e-7)
    query, key = (
        ops.convert_to_numpy(project(x))[0]
        for project in (attention.project_query, attention.project_key)
    )
    np.testing.assert_allclose(maps[0].content, query @ key.swapaxes(-1, -2), rtol=1e-4, atol=1e-5)
    if maps[0].position is not None:
        left, right = np.broadcast_to(transformer.config.max_relative_position, 2)
        distances = np.arange(7) - np.arange(7)[:, None]
        rows = np.clip(distances, -left, right) + left
        vectors = np.asarray(attention.key_embedding.table)[..., rows, :]
        expected = (query[:, :, None] * vectors).sum(-1)
        np.testing.assert_allclose(maps[0].position, expected, rtol=1e-4, atol=1e-6)


def test_recording_does_not_change_outputs(make_transformer):
    transformer = make_transformer("relative cross-attention")
    inputs = {"inputs": np.array([SOURCE]), "targets": np.array([TARGET])}
    before = np.asarray(transformer(inputs))
    attention = transformer.decoder_layers[1].cross_attention
    with record_attention(attention) as maps:
        np.testing.assert_allclose(transformer(inputs), before, rtol=1e-5, atol=1e-5)
    expected = record_attention_maps(transformer, SOURCE, TARGET)["cross"][1].weights
    np.testing.assert_allclose([layer.weights for layer in maps], [expected], rtol=1e-5)
    assert "attend" not in vars(attention)
    np.testing.assert_array_equal(transformer(inputs), before)


def test_layers_are_restored_after_error(make_transformer):
    transformer = make_transformer("learned")
    with pytest.raises(ValueError):
        record_attention_maps(transformer, SOURCE, [1] * 20)
    for block in (*transformer.encoder_layers, *transformer.decoder_layers):
        assert "attend" not in vars(block.self_attention)


def test_read_table_norms_of_all_tables(transformer):
    config, norms = transformer.config, read_table_norms(transformer)
    left, right = np.broadcast_to(config.max_relative_position, 2)
    num_heads = 1 if config.share_heads else 2
    columns = [c for c in (0, 1) if (config.use_key_table, config.use_value_table)[c]]
    for kind, num_layers in {"encoder": 2, "decoder": 3, "cross": 3}.items():
        has_tables = config.relative and (kind != "cross" or config.relative_cross_attention)
        layers = range(1, num_layers + 1) if has_tables else ()
        assert [(line.layer, line.column) for line in norms[kind]] == [
            (layer, column) for layer in layers for column in columns for _ in range(num_heads)
        ]
        for line in norms[kind]:
            assert line.distances == list(range(-left, right + 1))
    if norms["decoder"]:
        table = np.asarray(transformer.decoder_layers[2].self_attention.value_embedding.table)
        expected = np.sqrt((table**2).sum(-1)).reshape(num_heads, -1)
        last_lines = [line.norms for line in norms["decoder"][-num_heads:]]
        np.testing.assert_allclose(last_lines, expected, rtol=1e-6)
