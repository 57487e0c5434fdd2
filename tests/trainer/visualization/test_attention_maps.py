"""What is shown is what the layers compute: softmax of content plus position, by hand and by the layers' own returned scores."""

import numpy as np
import pytest
from keras import ops

from trainer.visualization.attention_maps import PARTS, attention_maps, listening, tables
from trainer.visualization.logit_parts import softmax

SOURCE, TARGET = [5, 7, 9, 22, 4, 7, 1], [3, 11, 2, 6, 1]
LENGTHS = {"encoder": (7, 7), "decoder": (5, 5), "cross": (5, 7)}
KINDS = [
    "shared tables", "tables per head", "relative cross-attention", "K = 0", "K beyond the lengths", "a^K alone", "a^V alone",
    "no tables", "sinusoidal", "learned", "relative and sinusoidal", "no positions", "post-norm, three embeddings, a target space",
]  # fmt: skip


@pytest.fixture(params=KINDS)
def transformer(request, make_transformer):
    return make_transformer(request.param)


def test_softmax_of_both_parts_is_the_layers_attention(transformer):
    maps = attention_maps(transformer, SOURCE, TARGET)
    assert {part: len(layers) for part, layers in maps.items()} == {
        "encoder": 2,
        "decoder": 3,
        "cross": 3,
    }
    for part, layers in maps.items():
        length_q, length_k = LENGTHS[part]
        visible = (
            np.tri(5, dtype=bool) if part == "decoder" else np.ones((length_q, length_k), bool)
        )
        for layer in layers:
            np.testing.assert_array_equal(layer.visible, visible)
            assert layer.weights.shape == layer.content.shape == (2, length_q, length_k)
            np.testing.assert_allclose(layer.weights.sum(-1), 1, rtol=1e-6)
            assert (layer.weights[:, ~visible] == 0).all() and (layer.weights[:, visible] > 0).all()
            logits = layer.content if layer.position is None else layer.content + layer.position
            np.testing.assert_allclose(
                softmax(logits, visible), layer.weights, rtol=1e-5, atol=1e-9
            )


def test_position_is_the_query_times_the_row_of_the_distance(transformer):
    config = transformer.config
    for part, layers in attention_maps(transformer, SOURCE, TARGET).items():
        has_tables = config.relative and (part != "cross" or config.relative_cross_attention)
        for layer in layers:
            assert (
                (layer.key_table is not None)
                == (has_tables and config.use_key_table)
                == (layer.position is not None)
            )
            assert (layer.value_table is not None) == (has_tables and config.use_value_table)
            if layer.position is None:
                continue
            for head, i, j in np.ndindex(layer.position.shape):
                table = layer.key_table if config.share_heads else layer.key_table[head]
                row = table[
                    np.clip(j - i, -config.max_relative_position, config.max_relative_position)
                    + config.max_relative_position
                ]
                np.testing.assert_allclose(
                    layer.position[head, i, j], layer.query[head, i] @ row, rtol=1e-4, atol=1e-6
                )


def test_first_layer_asked_for_its_scores_says_the_same(transformer):
    layer = attention_maps(transformer, SOURCE, TARGET)["encoder"][0]
    x = transformer.source_embedding(np.array([SOURCE]))
    if transformer.config.target_space_id is not None:
        x = x + transformer.target_space_embedding[transformer.config.target_space_id]
    if transformer.source_position is not None:
        x = transformer.source_position(x)
    block = transformer.encoder_layers[0]
    if transformer.config.normalize_first:
        x = block.self_attention_residual.norm(x)
    _, scores = block.self_attention(x, x, return_attention_scores=True)
    np.testing.assert_allclose(layer.weights, scores[0], rtol=1e-5, atol=1e-7)
    query, key = block.self_attention.project_query(x), block.self_attention.project_key(x)
    np.testing.assert_allclose(layer.query, query[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        layer.content, ops.matmul(query, ops.swapaxes(key, -1, -2))[0], rtol=1e-4, atol=1e-5
    )


def test_listening_changes_nothing(transformer):
    inputs = {"inputs": np.array([SOURCE]), "targets": np.array([TARGET])}
    before = np.asarray(transformer(inputs))
    attention = transformer.decoder_layers[1].cross_attention
    with listening(attention) as heard:
        np.testing.assert_allclose(transformer(inputs), before, rtol=1e-5, atol=1e-5)
    assert heard["map"].weights.shape == (2, 5, 7)
    assert "attend" not in vars(attention)
    np.testing.assert_array_equal(transformer(inputs), before)


def test_layer_can_be_called_after_a_failure(make_transformer):
    transformer = make_transformer("learned")
    with pytest.raises(ValueError, match="Expected"):
        attention_maps(transformer, SOURCE, [1] * 20)
    for block in (*transformer.encoder_layers, *transformer.decoder_layers):
        assert "attend" not in vars(block.self_attention)


def test_tables_without_a_sentence(transformer):
    maps = attention_maps(transformer, SOURCE, TARGET)
    for part, layers in tables(transformer).items():
        assert part in {part.id for part in PARTS}
        for (key_table, value_table), layer in zip(layers, maps[part], strict=True):
            np.testing.assert_array_equal(key_table, layer.key_table)
            np.testing.assert_array_equal(value_table, layer.value_table)
