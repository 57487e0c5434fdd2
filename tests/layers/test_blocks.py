"""Tests of FeedForward, Residual, TransformerEncoder and TransformerDecoder."""

import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import check_layer

from t2t_relpos.layers import FeedForward, Residual, TransformerDecoder, TransformerEncoder


def arrays(rng, *lengths):
    return [rng.normal(size=(3, n, 6)).astype("float32") for n in lengths]


def make(block, **settings):
    return block(**{"intermediate_dim": 11, "num_heads": 2, "max_relative_position": 3, **settings})


def test_feed_forward_contract_and_values(rng):
    (x,) = arrays(rng, 7)
    check_layer(lambda dtype: FeedForward(11, dropout=0.1, dtype=dtype), [x], output_shape=x.shape)
    layer = FeedForward(11)
    outputs = layer(x)
    w1, b1, w2, b2 = [ops.convert_to_numpy(v) for v in layer.variables]
    np.testing.assert_allclose(outputs, np.maximum(x @ w1 + b1, 0) @ w2 + b2, atol=1e-5)


@pytest.mark.parametrize("normalize_first", [True, False])
def test_residual_normalizes_before_or_after_the_sublayer(normalize_first, rng):
    (x,) = arrays(rng, 7)

    def norm(y):
        centred = y - y.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)

    expected = x + 3 * norm(x) if normalize_first else norm(x + 3 * x)
    outputs = Residual(normalize_first)(x, sublayer=lambda y: 3 * y)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


@pytest.mark.parametrize(
    "settings", [{}, {"normalize_first": False, "share_heads": False, "dropout": 0.1, "seed": 3}]
)
def test_encoder_contract(settings, rng):
    check_layer(
        lambda dtype: make(TransformerEncoder, dtype=dtype, **settings),
        arrays(rng, 7),
        output_shape=(3, 7, 6),
    )


def test_encoder_ignores_padding(rng):
    x, other = arrays(rng, 7, 7)
    mask = np.arange(7) < np.array([[7], [3], [5]])
    layer = make(TransformerEncoder)
    one = ops.convert_to_numpy(layer(x, padding_mask=mask))
    two = ops.convert_to_numpy(layer(np.where(mask[..., None], x, other), padding_mask=mask))
    np.testing.assert_allclose(one[mask], two[mask], atol=1e-6)


def test_encoder_uses_the_mask_of_an_embedding(rng):
    embedding = keras.layers.Embedding(7, 6, mask_zero=True)
    ids = np.array([[3, 5, 2, 0, 0]])
    layer = make(TransformerEncoder)
    outputs = layer(embedding(ids))
    np.testing.assert_array_equal(outputs._keras_mask, ids != 0)
    np.testing.assert_allclose(outputs[:, :3], layer(embedding(ids[:, :3])), atol=1e-6)


def test_decoder_contract(rng):
    check_layer(
        lambda dtype: make(TransformerDecoder, dtype=dtype),
        arrays(rng, 7, 11),
        output_shape=(3, 7, 6),
    )


def test_decoder_is_causal(rng):
    x, encoded, other = arrays(rng, 7, 5, 7)
    layer = make(TransformerDecoder)
    changed = np.concatenate([x[:, :4], other[:, 4:]], axis=1)
    np.testing.assert_allclose(layer(x, encoded)[:, :4], layer(changed, encoded)[:, :4], atol=1e-6)


@pytest.mark.parametrize("normalize_first", [True, False])
def test_decoder_steps_equal_the_full_call(normalize_first, rng):
    x, encoded = arrays(rng, 7, 5)
    mask = np.arange(5) < np.array([[5], [3], [1]])
    layer = make(TransformerDecoder, normalize_first=normalize_first)
    full = ops.convert_to_numpy(layer(x, encoded, encoder_padding_mask=mask))
    cache, context = layer.start_cache(3, 7), layer.project_encoded(encoded)
    for t in range(7):
        position = np.full(3, t, "int32")
        outputs, cache = layer.step(x[:, t : t + 1], cache, position, context, mask)
        np.testing.assert_allclose(outputs[:, 0], full[:, t], atol=1e-5)


def test_encoder_rejects_num_heads_that_do_not_divide_the_width(rng):
    with pytest.raises(ValueError, match="Expected `num_heads` to divide.*num_heads=5, width 6"):
        make(TransformerEncoder, num_heads=5)(*arrays(rng, 3))
