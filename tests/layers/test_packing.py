"""Tests that packed and padded sequences give the same values at all tokens."""

import numpy as np
import pytest
from compilation import compile_function
from gradients import output_and_gradients
from keras import ops

from t2t_relpos.layers import (
    Packing,
    RelativeMultiHeadAttention,
    RelativeMultiHeadAttentionV2,
)

# One target has no tokens, and one has padding between its tokens.
SOURCE = np.arange(11) < np.array([[11], [2], [7]])
TARGETS = np.array([[1, 1, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]], bool)
TARGET_TOKENS = np.array(
    [[1, 1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]], bool
)


def draw(rng, mask, width=6):
    return rng.normal(size=(*mask.shape, width)).astype("float32")


def test_pack_concatenates_tokens(rng):
    x = draw(rng, TARGETS)
    packing = Packing(TARGETS)
    np.testing.assert_array_equal(packing.mask, TARGET_TOKENS)
    packed = packing.pack(x)
    np.testing.assert_array_equal(packed, x[TARGET_TOKENS][None])
    np.testing.assert_array_equal(packing.unpack(packed), np.where(TARGET_TOKENS[..., None], x, 0))


def test_packing_splits_and_merges_heads(rng):
    packing = Packing(TARGETS)
    x = draw(rng, TARGETS) * TARGET_TOKENS[..., None]
    heads = np.reshape(x, (3, 7, 2, 3)).transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(packing.split_heads(packing.pack(x), 2), heads)
    np.testing.assert_array_equal(packing.merge_heads(heads), x[TARGET_TOKENS][None])


@pytest.mark.parametrize("rows", [0, 2])
def test_packing_without_tokens(rows, rng):
    mask = np.zeros((rows, 3), bool)
    packing = Packing(mask)
    x = draw(rng, mask)
    packed = packing.pack(x)
    assert tuple(packed.shape) == (1, min(rows, 1), 6)
    np.testing.assert_array_equal(packed[0], x[:1, 0])
    np.testing.assert_array_equal(packing.unpack(packed)[:1, :1], x[:1, :1])
    np.testing.assert_array_equal(packing.merge_heads(packing.split_heads(packed, 3)), packed)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_packing_without_positions(shape):
    packing = Packing(np.ones(shape, bool))
    packed = packing.pack(np.ones((*shape, 6), "float32"))
    np.testing.assert_array_equal(packed, np.zeros((1, 0, 6)))
    assert tuple(packing.unpack(packed).shape) == (*shape, 6)
    heads = packing.split_heads(packed, 3)
    np.testing.assert_array_equal(packing.merge_heads(heads), packed)
    layer = RelativeMultiHeadAttention(2, 3, max_relative_position=2)
    layer.build(packed.shape, packed.shape)
    outputs = layer.attend_packed(packed, packed, packing, packing)
    assert tuple(outputs.shape) == (1, 0, 6)


def test_packing_without_positions_in_a_graph(rng, tf):
    def packed_and_unpacked(x, mask):
        packing = Packing(mask)
        packed = packing.pack(x)
        return packed, packing.unpack(packed), packing.merge_heads(packing.split_heads(packed, 2))

    specs = [tf.TensorSpec([None, None, 6]), tf.TensorSpec([None, None], tf.bool)]
    graph = tf.function(packed_and_unpacked, input_signature=specs)
    for mask in (SOURCE, np.ones((0, 3), bool), np.ones((3, 0), bool)):
        x = draw(rng, mask)
        for found, expected in zip(graph(x, mask), packed_and_unpacked(x, mask), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["pack", "unpack", "split_heads", "merge_heads"])
def test_packing_gradients(name, rng):
    packing = Packing(TARGETS)
    tokens = TARGET_TOKENS.sum()
    shape = {"pack": (3, 7, 6), "merge_heads": (3, 2, 7, 3)}.get(name, (1, tokens, 6))
    arguments = (2,) if name == "split_heads" else ()
    function = lambda x: getattr(packing, name)(x, *arguments)
    x = rng.normal(size=shape).astype("float32")
    cotangent = rng.normal(size=function(x).shape).astype("float32")
    _, gradient = output_and_gradients(function, x, cotangent)
    # The function is linear, so the gradient is its transpose applied to the cotangent.
    basis = np.eye(x.size, dtype="float32")[:, None].reshape(x.size, *shape)
    expected = [np.sum(ops.convert_to_numpy(function(each)) * cotangent) for each in basis]
    np.testing.assert_allclose(np.ravel(gradient), expected, atol=1e-6)


def built_layer():
    layer = RelativeMultiHeadAttention(2, 3, max_relative_position=2)
    layer.build((None, None, 6), (None, None, 6))
    return layer


def values_at_tokens(x, mask):
    return ops.convert_to_numpy(x)[mask]


ATTENTION = [
    {},
    {"share_heads": False, "use_value_table": False},
    {"use_gate": True, "value_dim": 5, "use_bias": False},
    {"sliding_window": 2},
    {"max_relative_position": (4, 1)},
]
V2 = [{"use_value_table": True, "masked": masked} for masked in (False, True)]


@pytest.mark.parametrize(
    ("layer_class", "settings", "call"),
    [
        *(
            (RelativeMultiHeadAttention, settings, {"use_causal_mask": causal})
            for settings in ATTENTION
            for causal in (False, True)
        ),
        # Positions for which padding precedes visible keys.
        *(
            (RelativeMultiHeadAttention, {}, {"use_causal_mask": True} | positions)
            for positions in (
                {"query_offset": 3},
                {"query_positions": np.arange(11)[::-1].copy()},
            )
        ),
        *((RelativeMultiHeadAttentionV2, settings, {}) for settings in V2),
    ],
    ids=str,
)
def test_packed_self_attention_equals_padded(layer_class, settings, call, rng):
    x = draw(rng, SOURCE)
    layer = layer_class(2, 3, **{"max_relative_position": 2} | settings)
    expected = layer(x, x, value_mask=SOURCE, **call)
    packing = Packing(SOURCE)
    packed = packing.pack(x)
    found = layer.attend_packed(packed, packed, packing, packing, **call)
    np.testing.assert_allclose(found[0], values_at_tokens(expected, SOURCE), atol=1e-6)


def test_packed_cross_attention_equals_padded(rng):
    query, value = draw(rng, TARGETS), draw(rng, SOURCE)
    layer = RelativeMultiHeadAttention(2, 3, max_relative_position=2)
    options = {"query_offset": 0, "return_attention_scores": True}
    expected, weights = layer(query, value, value_mask=SOURCE, **options)
    query_packing, value_packing = Packing(TARGETS), Packing(SOURCE)
    found, scores = layer.attend_packed(
        query_packing.pack(query),
        value_packing.pack(value),
        query_packing,
        value_packing,
        **options,
    )
    np.testing.assert_allclose(found[0], values_at_tokens(expected, TARGET_TOKENS), atol=1e-6)
    by_query = lambda x: np.moveaxis(ops.convert_to_numpy(x), 1, 2)[TARGET_TOKENS]
    np.testing.assert_allclose(by_query(scores), by_query(weights), atol=1e-6)
    only = layer.attend_packed(
        query_packing.pack(query),
        value,
        query_packing,
        attention_mask=SOURCE[:, None],
        query_offset=0,
    )
    np.testing.assert_allclose(only, found, atol=1e-6)


def test_packing_can_not_be_compiled(rng):
    compiled = compile_function(lambda x, mask: Packing(mask).pack(x))
    with pytest.raises(ValueError, match="Received: code that XLA or jax.jit compiles. Pad"):
        compiled(draw(rng, SOURCE), SOURCE)
