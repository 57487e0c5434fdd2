"""Tests of the attention layers V2 and local."""

import numpy as np
import pytest
from keras import ops

from t2t_relpos.layers import (
    LocalRelativeMultiHeadAttention,
    RelativeMultiHeadAttention,
    RelativeMultiHeadAttentionV2,
)


def sequence(rng, *lengths):
    return rng.normal(size=(2, *lengths, 6)).astype("float32")


def make_v2(k=3, **settings):
    return RelativeMultiHeadAttentionV2(2, 5, k, **settings)


def test_v2_table_initializer():
    layer = RelativeMultiHeadAttentionV2(1, 7, 997)
    layer.build((None, None, 6), (None, None, 6))
    table = ops.convert_to_numpy(layer.key_embedding)
    np.testing.assert_allclose(table.std(), 7**-0.5, rtol=0.03)
    np.testing.assert_allclose(table.mean(), 0, atol=0.02)


def test_v2_with_wide_tables_equals_relative_attention(rng):
    x = sequence(rng, 7)
    layer = make_v2(8, use_value_table=True)
    clipped = RelativeMultiHeadAttention(2, 5, max_relative_position=7, share_heads=False)
    layer(x, x), clipped(x, x)
    for name in ("key_embedding", "value_embedding"):
        getattr(clipped, name).table.assign(getattr(layer, name))
    for name in ("query_dense", "key_dense", "value_dense", "output_dense"):
        getattr(clipped, name).kernel.assign(getattr(layer, name).kernel)
    np.testing.assert_allclose(layer(x, x), clipped(x, x), atol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_v2_supports_windows_and_positions(masked, rng):
    x = sequence(rng, 47)
    layer = make_v2(masked=masked, use_value_table=True, sliding_window=5)
    distance = np.arange(47) - np.arange(47)[:, None]
    dense = make_v2(masked=masked, use_value_table=True)
    dense(x, x)
    layer(x, x)
    dense.set_weights(layer.get_weights())
    expected = dense(x, x, attention_mask=np.abs(distance) < 5)
    np.testing.assert_allclose(layer(x, x), expected, atol=1e-5)
    # Shifting all positions by 3 keeps the distances.
    positions = np.arange(47, dtype="int32") + 3
    moved = dense(x, x, query_positions=positions, key_positions=positions)
    np.testing.assert_allclose(moved, dense(x, x), atol=1e-5)
    assert not np.allclose(dense(x, x, query_positions=positions), dense(x, x), atol=1e-3)


def test_v2_masked_is_causal_with_a_cache(rng):
    x = sequence(rng, 7)
    layer = make_v2(masked=True, use_value_table=True)
    expected = layer(x, x)
    cache = np.zeros((2, 2, 7, 2, 5), "float32")
    outputs, _ = layer.attend_with_cache(x, x, cache, 0, query_offset=0)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    outputs, _ = layer.attend_with_cache(x, None, layer.project_cache(x))
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


def test_local_attention_of_two_blocks_equals_masked_v2(rng):
    x = sequence(rng, 6)
    layer, masked = LocalRelativeMultiHeadAttention(2, 5, 3), make_v2(12, masked=True)
    layer(x, x), masked(x, x)
    masked.set_weights(layer.get_weights())
    np.testing.assert_allclose(layer(x, x), masked(x, x), atol=1e-6)
