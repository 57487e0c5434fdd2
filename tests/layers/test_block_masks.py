"""Tests of blocks with masks attached to their inputs, explicit masks and caches."""

import keras
import numpy as np
import pytest
from keras import ops

from t2t_relpos.layers import TransformerDecoder, TransformerEncoder

IDS = np.array([[3, 5, 2, 0, 0], [4, 4, 6, 2, 0]])
EXPLICIT = np.array([[True, True, True, True, False], [True, False, True, True, True]])


def make(block, **settings):
    return block(**{"intermediate_dim": 11, "num_heads": 2, "max_relative_position": 3, **settings})


@pytest.fixture
def embedded():
    """Returns embeddings `[2, 5, 6]` with an attached mask, and the same array without one."""
    x = keras.layers.Embedding(7, 6, mask_zero=True)(IDS)
    return x, ops.convert_to_numpy(x)


@pytest.mark.parametrize("normalize_first", [True, False])
def test_encoder_padding_mask_replaces_the_attached_mask(normalize_first, embedded):
    with_mask, without = embedded
    layer = make(TransformerEncoder, normalize_first=normalize_first)
    expected = ops.convert_to_numpy(layer(without, padding_mask=EXPLICIT))
    outputs = ops.convert_to_numpy(layer(with_mask, padding_mask=EXPLICIT))
    np.testing.assert_allclose(outputs[EXPLICIT], expected[EXPLICIT], atol=1e-6)
    implicit = ops.convert_to_numpy(layer(with_mask))
    assert np.abs(implicit - expected)[EXPLICIT].max() > 1e-3


@pytest.mark.parametrize("normalize_first", [True, False])
def test_decoder_padding_masks_replace_the_attached_masks(normalize_first, embedded):
    with_mask, without = embedded
    layer = make(TransformerDecoder, normalize_first=normalize_first)
    masks = {"decoder_padding_mask": EXPLICIT, "encoder_padding_mask": EXPLICIT[::-1]}
    expected = ops.convert_to_numpy(layer(without, without, **masks))
    outputs = ops.convert_to_numpy(layer(with_mask, with_mask, **masks))
    np.testing.assert_allclose(outputs[EXPLICIT], expected[EXPLICIT], atol=1e-6)


def test_decoder_with_a_cache_ignores_the_attached_mask(embedded):
    with_mask, without = embedded
    layer = make(TransformerDecoder)
    layer(without)
    cache = np.zeros((2, 2, 7, 2, 3), "float32")
    arguments = {"self_attention_cache": cache, "self_attention_cache_update_index": 0}
    expected, _ = layer(without, **arguments)
    outputs, _ = layer(with_mask, **arguments)
    np.testing.assert_allclose(outputs, expected, atol=1e-6)


def test_relative_cross_attention_with_a_cache_that_is_only_read(rng):
    x, encoded = (rng.normal(size=(2, n, 6)).astype("float32") for n in (7, 5))
    layer = make(TransformerDecoder, relative_cross_attention=True)
    full = ops.convert_to_numpy(layer(x, encoded))
    arguments = {
        "self_attention_cache": np.zeros((2, 2, 7, 2, 3), "float32"),
        "self_attention_cache_update_index": 0,
        "cross_attention_cache": np.zeros((2, 2, 5, 2, 3), "float32"),
        "cross_attention_cache_update_index": 0,
    }
    _, cache, cross_cache = layer(x, encoded, **arguments)
    outputs, *_ = layer(
        x[:, 5:], encoded, self_attention_cache=cache, cross_attention_cache=cross_cache
    )
    np.testing.assert_allclose(outputs, full[:, 5:], atol=1e-5)


def test_decoder_step_without_an_encoder_mask_equals_the_full_call(rng):
    x, encoded = (rng.normal(size=(2, n, 6)).astype("float32") for n in (3, 5))
    layer = make(TransformerDecoder)
    full = ops.convert_to_numpy(layer(x, encoded))
    cache, context = layer.start_cache(2, 3), layer.project_encoded(encoded)
    for t in range(3):
        outputs, cache = layer.step(x[:, t : t + 1], cache, t, context)
        np.testing.assert_allclose(outputs[:, 0], full[:, t], atol=1e-5)


def test_decoder_step_rejects_a_missing_or_unexpected_context(rng):
    x = rng.normal(size=(2, 3, 6)).astype("float32")
    block, decoder_only = (make(TransformerDecoder, name="mine") for _ in range(2))
    block(x, x)
    decoder_only(x)
    message = "Expected `context`, because mine has attention to an encoder. Received: none."
    with pytest.raises(ValueError, match=message):
        block.step(x[:, :1], block.start_cache(2, 3), 0)
    context = block.project_encoded(x)
    message = "Expected no `context`, because mine was built without `encoder_sequence`."
    with pytest.raises(ValueError, match=message):
        decoder_only.step(x[:, :1], decoder_only.start_cache(2, 3), 0, context)
    message = "Expected a block with attention to an encoder. Received: mine, which was built "
    with pytest.raises(ValueError, match=message):
        decoder_only.project_encoded(x)
