"""Tests of the attention layers V2, 2D and local."""

import numpy as np
import pytest
from keras import ops

from t2t_relpos.layers import (
    LocalRelativeMultiHeadAttention,
    RelativeMultiHeadAttention,
    RelativeMultiHeadAttention2D,
    RelativeMultiHeadAttentionV2,
)


def sequence(rng, *lengths):
    return rng.normal(size=(2, *lengths, 6)).astype("float32")


def make_v2(k=3, **settings):
    return RelativeMultiHeadAttentionV2(2, 5, k, **settings)


def make_2d(**settings):
    return RelativeMultiHeadAttention2D(2, 5, 2, **settings)


def make_local(**settings):
    return LocalRelativeMultiHeadAttention(2, 5, 3, **settings)


def test_v2_table_initializer():
    layer = RelativeMultiHeadAttentionV2(1, 7, 997)
    layer.build((None, None, 6), (None, None, 6))
    table = ops.convert_to_numpy(layer.key_embedding)
    np.testing.assert_allclose(table.std(), 7**-0.5, rtol=0.03)
    np.testing.assert_allclose(table.mean(), 0, atol=0.02)


@pytest.mark.parametrize("masked", [False, True])
def test_v2_masked_is_causal(masked, rng):
    x = sequence(rng, 7)
    _, scores = make_v2(masked=masked)(x, x, return_attention_scores=True)
    later = np.triu(np.ones((7, 7), bool), 1)
    assert (ops.convert_to_numpy(scores)[..., later] == 0).all() == masked


def test_v2_adds_no_relative_term_beyond_the_table(rng):
    x = sequence(rng, 11)
    layer = make_v2(use_bias=False)
    _, before = layer(x, x, return_attention_scores=True)
    layer.key_embedding.assign(layer.key_embedding * 0)
    _, without = layer(x, x, return_attention_scores=True)
    changed = np.log(ops.convert_to_numpy(before)) - np.log(ops.convert_to_numpy(without))
    # Relative terms also change the softmax sum, so compare with a pair beyond the table.
    far = np.abs(np.arange(11)[:, None] - np.arange(11)) >= 3
    for i in range(11):
        row = changed[:, :, i] - changed[:, :, i, far[i].argmax(), None]
        np.testing.assert_allclose(row[..., far[i]], 0, atol=1e-5)
        assert (np.abs(row[..., ~far[i]]).max(axis=(0, 1)) > 0.01).all()


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


def test_2d_of_a_transposed_image_uses_transposed_tables(rng):
    x = sequence(rng, 3, 5)
    layer, transposed = make_2d(), make_2d()
    layer(x, x), transposed(x, x)
    transposed.set_weights(layer.get_weights())
    transposed.height_embedding.assign(layer.width_embedding)
    transposed.width_embedding.assign(layer.height_embedding)
    y = x.swapaxes(1, 2)
    np.testing.assert_allclose(transposed(y, y), np.swapaxes(layer(x, x), 1, 2), atol=1e-6)


def test_2d_masks_cells(rng):
    x = sequence(rng, 3, 5)
    layer = make_2d(use_bias=False)
    full = ops.convert_to_numpy(layer(x[:, :2], x[:, :2]))
    real = np.ones((2, 3, 5), bool)
    real[:, 2] = False
    for name, mask in {
        "value_mask": real,
        "key_mask": real,
        "attention_mask": real.reshape(2, 1, 15),
    }.items():
        outputs = ops.convert_to_numpy(layer(x, x, **{name: mask}))
        np.testing.assert_allclose(outputs[:, :2], full, atol=1e-6)
    outputs = ops.convert_to_numpy(layer(x, x, query_mask=real))
    np.testing.assert_array_equal(outputs[:, 2], 0)
    assert (outputs[:, :2] != 0).any()


def test_local_attention_of_two_blocks_equals_masked_v2(rng):
    x = sequence(rng, 6)
    layer, masked = make_local(), make_v2(12, masked=True)
    layer(x, x), masked(x, x)
    masked.set_weights(layer.get_weights())
    np.testing.assert_allclose(layer(x, x), masked(x, x), atol=1e-6)


def test_local_attention_attends_to_the_current_and_the_previous_block(rng):
    x = sequence(rng, 11)
    layer = make_local()
    before = ops.convert_to_numpy(layer(x, x))
    for j in range(11):
        changed = x.copy()
        changed[:, j] += 1
        outputs = ops.convert_to_numpy(layer(x, changed))
        affected = [i for i in range(11) if (outputs[:, i] != before[:, i]).any()]
        assert affected == [i for i in range(j, 11) if i // 3 - j // 3 <= 1]


def test_local_attention_ignores_masked_keys(rng):
    x = sequence(rng, 5)
    layer = make_local(use_bias=False)
    expected = ops.convert_to_numpy(layer(x[:, 2:], x[:, 2:]))
    real = np.array([[False, False, True, True, True]] * 2)
    for masks in ({"value_mask": real}, {"key_mask": real}, {"value_mask": real, "key_mask": real}):
        outputs = ops.convert_to_numpy(layer(x, x, **masks))
        np.testing.assert_allclose(outputs[:, 2:], expected, atol=1e-6)
        np.testing.assert_array_equal(outputs[:, :2], 0)
    outputs = ops.convert_to_numpy(layer(x, x, query_mask=real))
    np.testing.assert_array_equal(outputs[:, :2], 0)
    assert (outputs[:, 2:] != 0).all()
