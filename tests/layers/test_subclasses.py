"""A subclass of the attention layer overrides `_compute_attention`, and all calls use it."""

import numpy as np
import pytest
from keras import ops

from t2t_relpos.layers import Packing, RelativeMultiHeadAttention

MASK = np.arange(11) < np.array([[11], [2], [7]])


class Doubled(RelativeMultiHeadAttention):
    """Attention with doubled queries."""

    def _compute_attention(
        self,
        query,
        key,
        value,
        attention_mask=None,
        training=None,
        return_attention_scores=False,
        **positions,
    ):
        arguments = attention_mask, training, return_attention_scores
        return super()._compute_attention(2 * query, key, value, *arguments, **positions)


class Recording(RelativeMultiHeadAttention):
    """Attention that keeps the masks of its calls. The signature is that of Keras 3.14."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.masks = []

    def _compute_attention(
        self,
        query,
        key,
        value,
        attention_mask=None,
        training=None,
        return_attention_scores=False,
    ):
        self.masks.append(None if attention_mask is None else ops.convert_to_numpy(attention_mask))
        arguments = attention_mask, training, return_attention_scores
        return super()._compute_attention(query, key, value, *arguments)


def doubled_and_expected(**settings):
    """Returns a `Doubled` layer, and a layer that computes the same."""
    settings = {"num_heads": 2, "key_dim": 5, "max_relative_position": 3} | settings
    layer, expected = Doubled(**settings), RelativeMultiHeadAttention(**settings)
    for each in (layer, expected):
        each.build((None, None, 6), (None, None, 6))
    expected.set_weights(layer.get_weights())
    for variable in expected.query_dense.variables:
        variable.assign(2 * ops.convert_to_tensor(variable))
    return layer, expected


def draw(rng, *shape):
    return rng.normal(size=shape).astype("float32")


@pytest.mark.parametrize(
    "settings, call",
    [
        ({}, {}),
        ({}, {"use_causal_mask": True, "return_attention_scores": True}),
        ({}, {"query_mask": MASK[:, :7], "value_mask": MASK, "use_causal_mask": True}),
        ({}, {"attention_mask": np.tril(np.ones((3, 2, 7, 11), bool), 2), "value_mask": MASK}),
        ({}, {"query_offset": 2, "use_causal_mask": True}),
        ({}, {"query_positions": np.arange(7)[::-1].copy(), "use_causal_mask": True}),
        ({"sliding_window": 3}, {"key_mask": MASK}),
        ({"share_heads": False, "use_gate": True, "value_dim": 4}, {"use_causal_mask": True}),
        ({"use_key_table": False, "use_value_table": False}, {"query_offset": 1}),
    ],
    ids=str,
)
def test_calls_use_the_method_of_a_subclass(settings, call, rng):
    query, value = draw(rng, 3, 7, 6), draw(rng, 3, 11, 6)
    results = [layer(query, value, **call) for layer in doubled_and_expected(**settings)]
    if "return_attention_scores" not in call:
        results = [[outputs] for outputs in results]
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("window", [None, 4])
def test_decoding_uses_the_method_of_a_subclass(window, rng):
    layers = doubled_and_expected(sliding_window=window)
    x = ops.convert_to_tensor(draw(rng, 3, 11, 6))
    cache, offset = ops.zeros((3, 2, 13, 2, 5)), ops.convert_to_tensor([0, 3, 1], "int32")
    for call in (
        lambda layer: layer.attend_with_cache(x, x, cache, 1, query_offset=1, causal=True)[0],
        lambda layer: layer.attend_with_cache(x[:, :1], x, cache, query_offset=3)[0],
        lambda layer: layer.attend_with_cache(x, None, layer.project_cache(x), query_offset=offset)[
            0
        ],
    ):
        found, expected = map(call, layers)
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_attention_uses_the_method_of_a_subclass(causal, rng):
    packing = Packing(MASK)
    packed = packing.pack(draw(rng, 3, 11, 6))
    found, expected = (
        layer.attend_packed(packed, packed, packing, packing, use_causal_mask=causal)
        for layer in doubled_and_expected()
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_subclass_gets_one_mask_as_in_keras(rng):
    layer = Recording(2, 5, max_relative_position=3)
    x = draw(rng, 3, 11, 6)
    layer(x, x)
    layer(x, x, use_causal_mask=True)
    layer(x, x, query_mask=MASK, value_mask=MASK, use_causal_mask=True)
    layer(x, x, attention_mask=np.ones((3, 2, 11, 11), bool), key_mask=MASK)
    causal = np.tril(np.ones((1, 11, 11), bool))
    assert layer.masks[0] is None
    np.testing.assert_array_equal(layer.masks[1], causal)
    np.testing.assert_array_equal(layer.masks[2], causal & MASK[:, None] & MASK[:, :, None])
    by_key = np.broadcast_to(MASK[:, None, None], (3, 2, 11, 11))
    np.testing.assert_array_equal(layer.masks[3], by_key)


def test_a_subclass_with_the_signature_of_keras_gets_no_positions(rng):
    x = draw(rng, 3, 11, 6)
    plain = Recording(2, 5, use_key_table=False, use_value_table=False)
    plain(x, x, query_offset=2, use_causal_mask=True)
    np.testing.assert_array_equal(plain.masks[0], np.tril(np.ones((1, 11, 11), bool), 2))
    with pytest.raises(TypeError, match="query_offset"):
        Recording(2, 5, max_relative_position=3)(x, x, query_offset=2)
