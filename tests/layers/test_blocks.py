"""Tests of TransformerEncoder and TransformerDecoder."""

import keras
import numpy as np
import pytest
from keras import ops

from t2t_relpos.attention.masks import window_mask
from t2t_relpos.layers import RelativeMultiHeadAttention, TransformerDecoder, TransformerEncoder

IDS = np.array([[3, 5, 2, 0, 0], [4, 4, 6, 2, 0]])
EXPLICIT = np.array([[True, True, True, True, False], [True, False, True, True, True]])


def arrays(rng, *lengths):
    return [rng.normal(size=(3, n, 6)).astype("float32") for n in lengths]


def make(block, **settings):
    return block(**{"intermediate_dim": 11, "num_heads": 2, "max_relative_position": 3, **settings})


@pytest.fixture
def embedded():
    """Returns embeddings `[2, 5, 6]` with an attached mask, and the same array without one."""
    x = keras.layers.Embedding(7, 6, mask_zero=True)(IDS)
    return x, ops.convert_to_numpy(x)


@pytest.mark.parametrize("block", [TransformerEncoder, TransformerDecoder])
def test_blocks_use_and_keep_the_mask_of_an_embedding(block, embedded):
    with_mask, without = embedded
    layer = make(block)
    outputs = layer(with_mask)
    np.testing.assert_array_equal(outputs._keras_mask, IDS != 0)
    np.testing.assert_allclose(outputs[:1, :3], layer(without[:1, :3]), atol=1e-6)
    embedding = keras.layers.Embedding(7, 6, mask_zero=True)
    symbolic = layer(embedding(keras.Input((None,), dtype="int32")))
    assert symbolic._keras_mask.shape == (None, None)


@pytest.mark.parametrize("normalize_first", [True, False])
@pytest.mark.parametrize(
    "block, masks",
    [
        (TransformerEncoder, {"padding_mask": EXPLICIT}),
        (
            TransformerDecoder,
            {"decoder_padding_mask": EXPLICIT, "encoder_padding_mask": EXPLICIT[::-1]},
        ),
    ],
)
def test_padding_masks_replace_the_attached_masks(block, masks, normalize_first, embedded):
    layer = make(block, normalize_first=normalize_first)
    outputs, expected = (
        ops.convert_to_numpy(layer(*[x] * len(masks), **masks))[EXPLICIT] for x in embedded
    )
    np.testing.assert_allclose(outputs, expected, atol=1e-6)
    implicit = ops.convert_to_numpy(layer(*[embedded[0]] * len(masks)))[EXPLICIT]
    assert np.abs(implicit - expected).max() > 1e-3


def test_decoder_with_a_cache_ignores_the_attached_mask(embedded):
    with_mask, without = embedded
    layer = make(TransformerDecoder)
    layer(without)
    cache = np.zeros((2, 2, 7, 2, 3), "float32")
    arguments = {"self_attention_cache": cache, "self_attention_cache_update_index": 0}
    expected, _ = layer(without, **arguments)
    outputs, _ = layer(with_mask, **arguments)
    np.testing.assert_allclose(outputs, expected, atol=1e-6)


@pytest.mark.parametrize("flash_attention", [None, True])
def test_window_of_a_block_limits_its_self_attention(flash_attention, rng):
    x, encoded = arrays(rng, 11, 9)
    mask = ops.convert_to_numpy(window_mask(11, 11, 3))
    settings = {"sliding_window": 3, "flash_attention": flash_attention}
    for block, sequences, name in (
        (TransformerEncoder, [x], "attention_mask"),
        (TransformerDecoder, [x, encoded], "decoder_attention_mask"),
    ):
        layer, plain = make(block, **settings), make(block)
        outputs = layer(*sequences)
        plain(*sequences)
        plain.set_weights(layer.get_weights())
        np.testing.assert_allclose(outputs, plain(*sequences, **{name: mask}), atol=1e-5)
        config = layer.get_config()
        assert {key: config[key] for key in settings} == settings


def test_flash_attention_of_a_block_is_that_of_its_attentions(run_log, rng):
    x, encoded = arrays(rng, 40, 30)
    make(TransformerDecoder, flash_attention=True)(x, encoded)
    found = run_log[:]
    run_log.clear()
    settings = {"num_heads": 2, "key_dim": 3, "flash_attention": True}
    RelativeMultiHeadAttention(**settings, max_relative_position=3)(x, x, use_causal_mask=True)
    RelativeMultiHeadAttention(**settings, use_key_table=False, use_value_table=False)(x, encoded)
    assert found == run_log
    run_log.clear()
    make(TransformerDecoder)(x, encoded)
    assert found[0] != run_log[0]


@pytest.mark.parametrize(
    "has_mask, settings",
    [
        (False, {"normalize_first": True, "sliding_window": 3}),
        (True, {"sliding_window": 2, "relative_v2": True, "flash_attention": True}),
        (True, {"relative_cross_attention": True, "max_relative_position": (4, 1)}),
        (False, {"relative_cross_attention": True, "share_heads": False}),
    ],
    ids=str,
)
def test_decoder_steps_equal_the_full_call(has_mask, settings, rng):
    x, encoded = arrays(rng, 7, 5)
    mask = np.arange(5) < np.array([[5], [3], [1]]) if has_mask else None
    layer = make(TransformerDecoder, **settings)
    full = ops.convert_to_numpy(layer(x, encoded, encoder_padding_mask=mask))
    cache = np.zeros((3, 2, 7, 2, 3), "float32")
    cross_cache = layer.cross_attention.project_cache(encoded)
    for t in range(7):
        outputs, cache, _ = layer(
            x[:, t : t + 1],
            encoder_padding_mask=mask,
            self_attention_cache=cache,
            self_attention_cache_update_index=t,
            cross_attention_cache=cross_cache,
        )
        np.testing.assert_allclose(outputs[:, 0], full[:, t], atol=1e-5)


def test_relative_cross_attention_with_a_cache_that_is_only_read(rng):
    x, encoded = arrays(rng, 7, 5)
    layer = make(TransformerDecoder, relative_cross_attention=True)
    full = ops.convert_to_numpy(layer(x, encoded))
    arguments = {
        "self_attention_cache": np.zeros((3, 2, 7, 2, 3), "float32"),
        "self_attention_cache_update_index": 0,
        "cross_attention_cache": np.zeros((3, 2, 5, 2, 3), "float32"),
        "cross_attention_cache_update_index": 0,
    }
    _, cache, cross_cache = layer(x, encoded, **arguments)
    outputs, *_ = layer(
        x[:, 5:], encoded, self_attention_cache=cache, cross_attention_cache=cross_cache
    )
    np.testing.assert_allclose(outputs, full[:, 5:], atol=1e-5)
