import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import check_layer

from t2t_relpos.attention.reference import dot_product_attention_relative
from t2t_relpos.layers import RelativeMultiHeadAttention


def arrays(rng, *lengths, width=6):
    return [rng.normal(size=(3, n, width)).astype("float32") for n in lengths]


def make(**settings):
    settings = {"num_heads": 2, "key_dim": 5, "max_relative_position": 3, **settings}
    return RelativeMultiHeadAttention(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"share_heads": False, "value_dim": 7, "output_shape": 11},
        {"use_bias": False, "use_value_table": False, "sliding_window": 3},
        {"use_gate": True, "use_key_table": False, "seed": 5, "dropout": 0.1},
        {"kernel_regularizer": "l2", "bias_constraint": "unit_norm", "activity_regularizer": "l1"},
    ],
)
def test_relative_attention_contract(settings, rng):
    check_layer(
        lambda dtype: make(dtype=dtype, **settings),
        arrays(rng, 7, 11),
        output_shape=(3, 7, settings.get("output_shape", 6)),
    )


def test_relative_attention_equals_the_t2t_reference(rng):
    x, y = arrays(rng, 7, 11)
    layer = make()
    outputs = layer(x, y)

    def heads(dense, inputs):
        return ops.transpose(dense(inputs), (0, 2, 1, 3))

    inner = dot_product_attention_relative(
        heads(layer.query_dense, x) * 5**-0.5,
        heads(layer.key_dense, y),
        heads(layer.value_dense, y),
        None,
        layer.key_embedding.table,
        layer.value_embedding.table,
        3,
        allow_memory=True,
    )
    merged = ops.transpose(inner, (0, 2, 1, 3))
    np.testing.assert_allclose(outputs, layer.output_dense(merged), atol=1e-6)


def test_relative_attention_returns_softmax_weights(rng):
    x, y = arrays(rng, 7, 11)
    outputs, scores = make()(x, y, return_attention_scores=True)
    assert outputs.shape == (3, 7, 6)
    assert scores.shape == (3, 2, 7, 11)
    np.testing.assert_allclose(ops.sum(scores, axis=-1), 1, atol=1e-6)


def test_relative_attention_applies_causal_mask_and_window(rng):
    (x,) = arrays(rng, 11)
    _, scores = make(sliding_window=3)(x, x, use_causal_mask=True, return_attention_scores=True)
    distance = np.arange(11)[:, None] - np.arange(11)
    attended = ops.convert_to_numpy(scores) > 0
    np.testing.assert_array_equal(
        attended, np.broadcast_to((distance >= 0) & (distance < 3), attended.shape)
    )


def test_relative_attention_aligns_queries_with_the_last_positions(rng):
    (x,) = arrays(rng, 11)
    layer = make()
    full = ops.convert_to_numpy(layer(x, x, use_causal_mask=True))
    last = layer(x[:, -3:], x, use_causal_mask=True)
    np.testing.assert_allclose(last, full[:, -3:], atol=1e-6)
    middle = layer(x[:, 4:7], x, use_causal_mask=True, query_offset=4)
    np.testing.assert_allclose(middle, full[:, 4:7], atol=1e-6)


def test_relative_attention_uses_the_mask_of_an_embedding(rng):
    ids = np.array([[3, 5, 2, 0, 0], [1, 2, 3, 4, 5]])
    embedding = keras.layers.Embedding(7, 6, mask_zero=True)
    layer = make(use_bias=False)
    x = embedding(ids)
    outputs = layer(x, x)
    np.testing.assert_array_equal(outputs._keras_mask, ids != 0)
    outputs = ops.convert_to_numpy(outputs)
    np.testing.assert_array_equal(outputs[0, 3:], 0)
    plain = ops.convert_to_tensor(ops.convert_to_numpy(x))
    np.testing.assert_allclose(outputs[0, :3], layer(plain[:1, :3], plain[:1, :3])[0], atol=1e-6)


def test_relative_attention_table_shapes():
    for share_heads, shape in ((True, (7, 5)), (False, (2, 7, 5))):
        layer = make(share_heads=share_heads)
        layer.build((None, None, 6), (None, None, 6))
        assert layer.key_embedding.table.shape == shape


def test_relative_attention_saves_in_a_model(rng, tmp_path):
    x = keras.Input((None, 6))
    model = keras.Model(x, make(share_heads=False)(x, x, use_causal_mask=True))
    (data,) = arrays(rng, 7)
    expected = model.predict(data, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(data, verbose=0), expected)


@pytest.mark.parametrize("share_heads", [False, True])
@pytest.mark.parametrize("sliding_window", [None, 4])
def test_relative_attention_steps_equal_the_full_call(share_heads, sliding_window, rng):
    (x,) = arrays(rng, 11)
    layer = make(share_heads=share_heads, sliding_window=sliding_window)
    full = ops.convert_to_numpy(layer(x, x, use_causal_mask=True))
    cache = layer.start_cache(3, 13)
    for t in range(11):
        outputs, cache = layer.step(x[:, t : t + 1], cache, np.full(3, t, "int32"))
        np.testing.assert_allclose(outputs[:, 0], full[:, t], atol=1e-5)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"max_relative_position": -1}, "from 0 to 1,000,000. Received: max_relative_position=-1"),
        ({"max_relative_position": None}, "Received: max_relative_position=None"),
        ({"num_heads": 0}, "Expected `num_heads` to be a positive integer. Received: num_heads=0"),
        (
            {"value_dim": -7},
            "Expected `value_dim` to be a positive integer. Received: value_dim=-7",
        ),
        (
            {"dropout": 1.0},
            "Expected `dropout` to be at least 0 and below 1. Received: dropout=1.0",
        ),
        ({"attention_axes": (1, 2)}, r"Expected `attention_axes` to be None or 1.*\(1, 2\)"),
        ({"sliding_window": 0}, "Expected `sliding_window` to be a positive integer"),
        ({"output_shape": (3, 5)}, r"Expected `output_shape` to be an int.*\(3, 5\)"),
    ],
)
def test_relative_attention_rejects_invalid_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        make(**settings)


def test_flash_attention_equals_the_default(rng):
    x, y = arrays(rng, 7, 11)
    layer = make(flash_attention=True)
    outputs = layer(x, y)
    other = make()
    other(x, y)
    other.set_weights(layer.get_weights())
    np.testing.assert_allclose(outputs, other(x, y), atol=1e-6)
    message = r"Memory linear in length \(`rematerialize=True`, `flash_attention=True` of a layer\)"
    with pytest.raises(ValueError, match=message):
        layer(x, y, return_attention_scores=True)


def test_relative_attention_rejects_invalid_shapes(rng):
    with pytest.raises(ValueError, match=r"Expected `query` of shape \[batch, length, width\]"):
        make()(np.zeros((2, 3, 5, 7)), np.zeros((2, 3, 5, 7)))
    with pytest.raises(ValueError, match="Expected `key` and `value` of the same length"):
        make()(*arrays(rng, 3, 5), arrays(rng, 7)[0])


@pytest.mark.parametrize("causal", [False, True])
def test_sliding_window_equals_a_masked_full_matrix(causal, rng):
    (x,) = arrays(rng, 97)
    value_mask = np.arange(97) < np.array([[97], [61], [3]])
    layer = make(sliding_window=5)
    dense, scores = layer(
        x, x, value_mask=value_mask, use_causal_mask=causal, return_attention_scores=True
    )
    assert scores.shape == (3, 2, 97, 97)
    local = layer(x, x, value_mask=value_mask, use_causal_mask=causal)
    np.testing.assert_allclose(local, dense, atol=1e-5)


@pytest.mark.parametrize("window", [None, 4])
def test_query_positions_equal_query_offset(window, rng):
    x, y = arrays(rng, 5, 11)
    layer = make(sliding_window=window)
    expected = layer(x, y, use_causal_mask=True, query_offset=4)
    for positions in (np.arange(4, 9), np.tile(np.arange(4, 9), (3, 1))):
        outputs = layer(x, y, use_causal_mask=True, query_positions=positions)
        np.testing.assert_allclose(outputs, expected, atol=1e-6)


def test_positions_per_batch_entry(rng):
    x, y = arrays(rng, 5, 11)
    queries, keys = rng.integers(0, 13, size=(3, 5)), rng.integers(0, 13, size=(3, 11))
    layer = make(share_heads=False)
    together = ops.convert_to_numpy(layer(x, y, query_positions=queries, key_positions=keys))
    for row in range(3):
        one = slice(row, row + 1)
        single = layer(x[one], y[one], query_positions=queries[row], key_positions=keys[row])
        np.testing.assert_allclose(together[one], single, atol=1e-6)


def test_relative_attention_rejects_invalid_positions(rng):
    x, y = arrays(rng, 5, 11)
    with pytest.raises(ValueError, match="Expected either `query_offset` or `query_positions`"):
        make()(x, y, query_offset=1, query_positions=np.arange(5))
    with pytest.raises(ValueError, match="Expected key_positions of an integer dtype"):
        make()(x, y, key_positions=np.arange(11.0))
