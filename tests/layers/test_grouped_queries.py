"""`num_key_value_heads`: compared with a layer that has each head of keys and values repeatedly."""

import keras
import numpy as np
import pytest
from keras import ops

from t2t_relpos.layers import RelativeMultiHeadAttention

HEADS, GROUPS, DEPTH, WIDTH, LENGTH = 4, 2, 3, 8, 11


def make_layers(rng, **kwargs):
    """Returns a layer with grouped queries, and one with the same heads, but repeated."""
    arguments = {"max_relative_position": 2, "seed": 1} | kwargs
    grouped = RelativeMultiHeadAttention(HEADS, DEPTH, num_key_value_heads=GROUPS, **arguments)
    repeated = RelativeMultiHeadAttention(HEADS, DEPTH, **arguments)
    for layer in (grouped, repeated):
        layer.build((None, None, WIDTH), (None, None, WIDTH))
    for x, y in zip(grouped.weights, repeated.weights, strict=True):
        values = rng.normal(size=x.shape) if "seed" not in x.path else ops.convert_to_numpy(x)
        x.assign(values)
        if x.shape != y.shape:  # `[D, N, H]` or `[N, H]`
            values = np.repeat(values, HEADS // GROUPS, axis=-2)
        y.assign(values)
    return grouped, repeated


def draw(rng, length=LENGTH):
    return rng.normal(size=(2, length, WIDTH)).astype("float32")


CALLS = [
    {},
    {"use_causal_mask": True, "return_attention_scores": True},
    {"key_mask": np.arange(LENGTH)[None] < [[9], [5]], "query_offset": 1},
    {"query_positions": np.arange(LENGTH)[::-1].copy(), "return_attention_scores": True},
]


@pytest.mark.parametrize("settings", [{}, {"sliding_window": 3}, {"value_dim": 5}], ids=str)
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_call_equals_repeated_heads(call, settings, rng):
    grouped, repeated = make_layers(rng, **settings)
    query, value = draw(rng), draw(rng)
    found, expected = (layer(query, value, **call) for layer in (grouped, repeated))
    for x, y in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(
            ops.convert_to_numpy(x), ops.convert_to_numpy(y), atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("value_dim", [None, 5])
def test_decoding_with_a_cache_equals_a_call(value_dim, rng):
    layer, _ = make_layers(rng, value_dim=value_dim)
    x = draw(rng)
    expected = ops.convert_to_numpy(layer(x, x, use_causal_mask=True))
    if value_dim is None:
        cache = np.zeros((2, 2, LENGTH, GROUPS, DEPTH), "float32")
    else:
        depths = DEPTH, value_dim
        cache = tuple(np.zeros((2, LENGTH, GROUPS, depth), "float32") for depth in depths)
    # A prompt, a part of it with a cache before it, and single tokens.
    for start, stop in ((0, 4), (4, 7), (7, 8), (8, 9)):
        part = x[:, start:stop]
        outputs, cache = layer.attend_with_cache(
            part, part, cache, start, query_offset=start, causal=True
        )
        np.testing.assert_allclose(
            ops.convert_to_numpy(outputs), expected[:, start:stop], atol=1e-5
        )


def test_cache_with_all_heads_is_refused(rng):
    layer, _ = make_layers(rng)
    x = draw(rng, 1)
    with pytest.raises(ValueError, match=r"`cache` of shape .*\[2, 2, \*, 2, 3\]"):
        layer.attend_with_cache(x, x, np.zeros((2, 2, 5, HEADS, DEPTH), "float32"), 0)


def test_saved_layer_has_the_same_outputs(rng, tmp_path):
    layer, _ = make_layers(rng)
    x = keras.Input((None, WIDTH))
    model = keras.Model(x, layer(x, x))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    inputs = draw(rng)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(loaded(inputs)), ops.convert_to_numpy(model(inputs))
    )
    # Earlier versions load layers without it.
    config = RelativeMultiHeadAttention(2, 3, max_relative_position=1).get_config()
    assert "num_key_value_heads" not in config


def test_explain_names_the_grouped_queries():
    layer = RelativeMultiHeadAttention(4, 64, max_relative_position=2, num_key_value_heads=2)
    assert layer.explain(1025, backend="torch", device="cpu").chosen == "flash"
    reason = layer.explain(1024, backend="torch", device="cpu").reasons["flash"]
    assert reason == "requires with heads of queries that share keys, more than 1,024 positions"


@pytest.mark.parametrize("value", [3, 0, 8, 1.5])
def test_bad_number_of_heads(value):
    with pytest.raises(ValueError, match="num_key_value_heads"):
        RelativeMultiHeadAttention(4, 3, max_relative_position=1, num_key_value_heads=value)


def test_conversion_to_fewer_heads_is_refused():
    x = np.ones((1, 5, 8), "float32")
    layer = keras.layers.MultiHeadAttention(4, 3)
    layer(x, x)
    with pytest.raises(ValueError, match="Expected no `num_key_value_heads`"):
        RelativeMultiHeadAttention.from_multi_head_attention(layer, 1, num_key_value_heads=2)
