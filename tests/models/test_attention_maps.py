"""Tests of attention maps, compared with the layers' outputs and the formula of the logits."""

import numpy as np
import pytest
from keras import ops

from t2t_relpos.models.attention_maps import (
    read_table_norms,
    record_attention,
    record_attention_maps,
    row_norms,
)
from t2t_relpos.models.logit_parts import softmax

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


def test_first_encoder_layer_equals_the_formula(transformer):
    layer = record_attention_maps(transformer, SOURCE, TARGET)["encoder"][0]
    config = transformer.config
    x = transformer.source_embedding(np.array([SOURCE]))
    if config.target_space_id is not None:
        x = x + transformer.target_space_embedding[config.target_space_id]
    if transformer.source_position is not None:
        x = transformer.source_position(x)
    block = transformer.encoder_layers[0]
    if config.normalize_first:
        x = block.self_attention_residual.norm(x)
    attention = block.self_attention
    _, scores = attention(x, x, return_attention_scores=True)
    np.testing.assert_allclose(layer.weights, scores[0], rtol=1e-5, atol=1e-7)
    query, key = attention.project_query(x), attention.project_key(x)
    content = ops.matmul(query, ops.swapaxes(key, -1, -2))[0]
    np.testing.assert_allclose(layer.content, content, rtol=1e-4, atol=1e-5)
    if layer.position is None:
        return
    table = np.asarray(attention.key_embedding.table)
    for head, i, j in np.ndindex(layer.position.shape):
        max_distance = config.max_relative_position
        row = np.clip(j - i, -max_distance, max_distance) + max_distance
        vector = table[row] if config.share_heads else table[head, row]
        expected = np.asarray(query)[0, head, i] @ vector
        np.testing.assert_allclose(layer.position[head, i, j], expected, rtol=1e-4, atol=1e-6)


def test_recording_does_not_change_outputs(transformer):
    inputs = {"inputs": np.array([SOURCE]), "targets": np.array([TARGET])}
    before = np.asarray(transformer(inputs))
    attention = transformer.decoder_layers[1].cross_attention
    with record_attention(attention) as maps:
        np.testing.assert_allclose(transformer(inputs), before, rtol=1e-5, atol=1e-5)
    assert [layer.weights.shape for layer in maps] == [(2, 5, 7)]
    assert "attend" not in vars(attention)
    np.testing.assert_array_equal(transformer(inputs), before)


def test_layers_are_restored_after_error(make_transformer):
    transformer = make_transformer("learned")
    with pytest.raises(ValueError):
        record_attention_maps(transformer, SOURCE, [1] * 20)
    for block in (*transformer.encoder_layers, *transformer.decoder_layers):
        assert "attend" not in vars(block.self_attention)


@pytest.mark.parametrize("shape", [(7, 5), (2, 7, 5), (1, 5), (2, 1, 5)])
def test_row_norms(rng, shape):
    table = rng.normal(size=shape)
    expected = np.sqrt((table**2).sum(-1)).reshape(-1, shape[-2])
    np.testing.assert_allclose(row_norms(table), expected)


def test_read_table_norms_of_all_tables(transformer):
    config, norms = transformer.config, read_table_norms(transformer)
    max_distance, num_heads = config.max_relative_position, 1 if config.share_heads else 2
    is_used = (config.use_key_table, config.use_value_table)
    for kind, num_layers in {"encoder": 2, "decoder": 3, "cross": 3}.items():
        has_tables = config.relative and (kind != "cross" or config.relative_cross_attention)
        assert [(line.layer, line.column) for line in norms[kind]] == [
            (layer, column)
            for layer in range(1, num_layers + 1)
            for column in (0, 1)
            if has_tables and is_used[column]
            for _ in range(num_heads)
        ]
        for line in norms[kind]:
            assert line.distances == list(range(-max_distance, max_distance + 1))
    if norms["decoder"] and config.use_value_table:
        table = transformer.decoder_layers[2].self_attention.value_embedding.table
        last_lines = [line.norms for line in norms["decoder"][-num_heads:]]
        np.testing.assert_allclose(last_lines, row_norms(np.asarray(table)))
