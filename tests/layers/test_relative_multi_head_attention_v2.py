import numpy as np
import pytest
from keras import ops
from layer_checks import check_layer

from t2t_relpos.layers import RelativeMultiHeadAttention, RelativeMultiHeadAttentionV2


def arrays(rng, *lengths, width=6):
    return [rng.normal(size=(3, n, width)).astype("float32") for n in lengths]


def make(**settings):
    settings = {"num_heads": 2, "key_dim": 5, "max_relative_position": 3, **settings}
    return RelativeMultiHeadAttentionV2(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"masked": True, "use_value_table": True, "value_dim": 7, "output_shape": 11},
        {"share_heads": True, "use_bias": False, "use_value_table": True, "sliding_window": 3},
        {"table_initializer": "zeros", "use_gate": True, "dropout": 0.1, "seed": 5},
    ],
)
def test_attention_v2_contract(settings, rng):
    check_layer(
        lambda dtype: make(dtype=dtype, **settings),
        arrays(rng, 7, 11),
        output_shape=(3, 7, settings.get("output_shape", 6)),
    )


@pytest.mark.parametrize(
    "settings, key_shape, value_shape",
    [
        ({"masked": True}, (2, 3, 5), (2, 3, 7)),
        ({"masked": False}, (2, 5, 5), (2, 5, 7)),
        ({"masked": True, "share_heads": True}, (3, 5), (3, 7)),
        ({"masked": False, "share_heads": True}, (5, 5), (5, 7)),
    ],
)
def test_attention_v2_table_shapes(settings, key_shape, value_shape):
    layer = make(use_value_table=True, value_dim=7, **settings)
    layer.build((None, None, 6), (None, None, 6))
    assert layer.key_embedding.shape == key_shape
    assert layer.value_embedding.shape == value_shape


def test_attention_v2_table_initializer():
    layer = make(max_relative_position=997, key_dim=7, num_heads=1)
    layer.build((None, None, 6), (None, None, 6))
    table = ops.convert_to_numpy(layer.key_embedding)
    np.testing.assert_allclose(table.std(), 7**-0.5, rtol=0.03)
    np.testing.assert_allclose(table.mean(), 0, atol=0.02)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_v2_masked_is_causal(masked, rng):
    (x,) = arrays(rng, 7)
    _, scores = make(masked=masked)(x, x, return_attention_scores=True)
    later = np.triu(np.ones((7, 7), bool), 1)
    assert (ops.convert_to_numpy(scores)[..., later] == 0).all() == masked


def test_attention_v2_adds_no_relative_term_beyond_the_table(rng):
    (x,) = arrays(rng, 11)
    layer = make(use_bias=False)
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


def test_attention_v2_with_wide_tables_equals_relative_attention(rng):
    (x,) = arrays(rng, 7)
    layer = make(max_relative_position=8, use_value_table=True)
    clipped = RelativeMultiHeadAttention(2, 5, max_relative_position=7, share_heads=False)
    layer(x, x), clipped(x, x)
    for name in ("key_embedding", "value_embedding"):
        getattr(clipped, name).table.assign(getattr(layer, name))
    for name in ("query_dense", "key_dense", "value_dense", "output_dense"):
        getattr(clipped, name).kernel.assign(getattr(layer, name).kernel)
    np.testing.assert_allclose(layer(x, x), clipped(x, x), atol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_v2_supports_windows_and_positions(masked, rng):
    (x,) = arrays(rng, 47)
    layer = make(masked=masked, use_value_table=True, sliding_window=5)
    distance = np.arange(47) - np.arange(47)[:, None]
    dense = make(masked=masked, use_value_table=True)
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


@pytest.mark.parametrize("masked", [False, True])
def test_attention_v2_steps_equal_the_full_call(masked, rng):
    (x,) = arrays(rng, 11)
    layer = make(masked=masked, use_value_table=True)
    full = ops.convert_to_numpy(layer(x, x, use_causal_mask=True))
    cache = layer.start_cache(3, 13)
    for t in range(11):
        outputs, cache = layer.step(x[:, t : t + 1], cache, np.full(3, t, "int32"))
        np.testing.assert_allclose(outputs[:, 0], full[:, t], atol=1e-5)


@pytest.mark.parametrize("value", [0, -3, None, 2.0])
def test_attention_v2_rejects_invalid_max_relative_position(value):
    message = f"Expected `max_relative_position` to be a positive integer. Received: .*={value}"
    with pytest.raises(ValueError, match=message):
        make(max_relative_position=value)


def test_attention_v2_masked_is_causal_with_a_cache(rng):
    (x,) = arrays(rng, 7)
    layer = make(masked=True, use_value_table=True)
    expected = layer(x, x)
    size = layer.key_dim
    cache = np.zeros((3, 2, 7, layer.num_heads, size), "float32")
    outputs, _ = layer.attend_with_cache(x, x, cache, 0, query_offset=0)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    outputs = layer.attend_to(x, layer.project_key(x), layer.project_value(x))
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
