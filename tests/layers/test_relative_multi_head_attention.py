import keras
import numpy as np
import pytest
from comparisons import assert_all_close
from definition import attention_of_pairs, distances, relative_attention
from gradients import output_and_gradients, with_values
from keras import ops

from t2t_relpos.attention.reference import dot_product_attention_relative
from t2t_relpos.layers import RelativeMultiHeadAttention, RelativeMultiHeadAttentionV2


def arrays(rng, *lengths, width=6):
    return [rng.normal(size=(3, n, width)).astype("float32") for n in lengths]


def make(**settings):
    settings = {"num_heads": 2, "key_dim": 5, "max_relative_position": 3, **settings}
    return RelativeMultiHeadAttention(**settings)


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


POSITIONS = {
    "query_positions": np.array([9, 0, 4, 3, 20, 4, -7], "int32"),
    "key_positions": np.array([5, 1, 0, 3, 3, 8, 2, 11, 30, -2, 4], "int32"),
}


@pytest.mark.parametrize(
    "pair, settings, call, length",
    [
        ((6, 2), {}, {}, 11),
        ((2, 6), {}, {"use_causal_mask": True}, 11),
        ((2, 6), {"share_heads": False}, {"query_offset": 1}, 7),
        ((6, 2), {"share_heads": False}, POSITIONS, 7),
        ((2, 6), {"use_key_table": False}, POSITIONS | {"use_causal_mask": True}, 7),
        ((0, 3), {"use_value_table": False}, {"use_causal_mask": True}, 7),
        ([3, 0], {"flash_attention": True}, {}, 7),
        ((0, 3), {"flash_attention": True}, {"use_causal_mask": True}, 11),
        ((6, 2), {"sliding_window": 5}, {"use_causal_mask": True}, 11),
        ((2, 6), {"sliding_window": 5}, POSITIONS | {"use_causal_mask": True}, 7),
        ((0, 0), {}, {}, 7),
        ((6, 2), {}, {}, 1),
        ((2, 14), {}, {}, 11),
        pytest.param((70, 5), {"share_heads": False}, {}, 160, marks=pytest.mark.slow),
        pytest.param((5, 70), {}, {"use_causal_mask": True}, 160, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_clipping_distances_equal_the_definition(pair, settings, call, length, rng, precision):
    """A call with fewer than 11 queries has 11 keys."""
    keras.config.set_dtype_policy(precision.dtype)
    layer = make(max_relative_position=pair, bias_initializer="normal", **settings)
    x, y = (each.astype(precision.dtype) for each in arrays(rng, length, max(length, 11)))
    layer.build(x.shape, y.shape)
    left, right = layer.max_relative_position if any(pair) else (0, 0)
    variables = layer.trainable_variables
    for variable in variables:
        variable.assign(rng.normal(size=variable.shape))
    offset = call.get("query_offset", y.shape[1] - length)
    positions = {
        "query_positions": call.get("query_positions", np.arange(length) + offset),
        "key_positions": call.get("key_positions", np.arange(y.shape[1])),
    }
    distance = positions["key_positions"] - positions["query_positions"][:, None]
    mask = np.abs(distance) < (layer.sliding_window or 10**6)
    if call.get("use_causal_mask"):
        mask &= distance <= 0

    def by_definition(x, y):
        outputs, _ = attention_of_pairs(
            layer.project_query(x),
            layer.project_key(y),
            layer.project_value(y),
            *layer.clipped_tables(),
            max_relative_position=(left, right),
            mask=mask,
            **{name: ops.convert_to_tensor(p, "int32") for name, p in positions.items()},
        )
        return layer.output_dense(ops.transpose(outputs, (0, 2, 1, 3)))

    cotangent = rng.normal(size=x.shape).astype(precision.dtype)
    found, expected = (
        output_and_gradients(
            lambda tensors: with_values(variables, tensors[2:], lambda: function(*tensors[:2])),
            [x, y, *map(ops.convert_to_numpy, variables)],
            cotangent,
        )
        for function in (lambda x, y: layer(x, y, **call), by_definition)
    )
    scale = max(np.abs(each).max() for each in expected[1])
    assert_all_close(found, expected, rtol=0, atol=10 * scale * precision.atol)


@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "mixed_bfloat16", "max_relative_position": (0, 7)},
        {"flash_attention": True, "dropout": 0.1, "value_dim": 7},
        {"flash_attention": True, "share_heads": False, "max_relative_position": (6, 2)},
        {"sliding_window": 8},
        {"use_key_table": False, "use_value_table": False},
        {"use_key_table": False, "max_relative_position": 0},
    ],
    ids=str,
)
def test_explain_names_the_implementation_that_the_layer_runs(settings, run_log):
    layer = make(**settings)
    masked_v2 = RelativeMultiHeadAttentionV2(2, 5, max_relative_position=3, masked=True)
    for length in (11, 160):
        x = keras.Input((length, 6))
        for training, causal in ((False, False), (True, True)):
            layer(x, x, training=training, use_causal_mask=causal)
            found = layer.explain(length, training=training, causal=causal)
            assert run_log[-1] == found.chosen
        masked_v2(x, x)
        assert run_log[-1] == masked_v2.explain(length).chosen
    layer.explain(None, backend="jax", device="gpu")


def test_explain_of_a_layer_reads_its_settings():
    layer = make(key_dim=64, sliding_window=64)
    on_gpu = {"backend": "jax", "xla": False, "device": "gpu"}
    assert layer.explain(3000, **on_gpu).skips_keys
    options = on_gpu | {"sliding_window": None}
    assert layer.explain(3000, **options).chosen == "blocks"
    half = make(key_dim=64, dtype="mixed_bfloat16", dropout=0.1)
    assert half.explain(3000, **on_gpu).chosen == "flash"
    assert half.explain(3000, training=True, **on_gpu).chosen == "blocks"
    with pytest.raises(ValueError, match="requires: no returned weights"):
        make(flash_attention=True).explain(7, return_weights=True)


def test_window_reads_ranges_of_keys_for_unknown_lengths_in_mixed_precision(rng, tf, run_log):
    ids_input = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(7, 6, mask_zero=True)(ids_input)
    layer = make(sliding_window=5, dtype="mixed_float16")
    model = keras.Model(ids_input, [layer(x, x), layer(query=x, value=x, key=x)])
    graph = tf.function(model, input_signature=[tf.TensorSpec([None, None], tf.int32)])
    dense = keras.Model(ids_input, layer(x, x, return_attention_scores=True)[0])
    for length in (23, 97):
        ids = rng.integers(0, 3, (2, length)).astype("int32")
        found = graph(ids)
        for each in found:
            np.testing.assert_allclose(each, dense(ids), atol=5e-3)
    assert "rematerialized_blocks" in run_log


def test_positions_per_batch_entry(rng):
    x, y = arrays(rng, 5, 11)
    queries, keys = rng.integers(0, 13, size=(3, 5)), rng.integers(0, 13, size=(3, 11))
    layer = make(share_heads=False)
    together = ops.convert_to_numpy(layer(x, y, query_positions=queries, key_positions=keys))
    for row in range(3):
        one = slice(row, row + 1)
        single = layer(x[one], y[one], query_positions=queries[row], key_positions=keys[row])
        np.testing.assert_allclose(together[one], single, atol=1e-6)


def test_v2_table_initializer():
    layer = RelativeMultiHeadAttentionV2(1, 7, 997)
    layer.build((None, None, 6), (None, None, 6))
    table = ops.convert_to_numpy(layer.key_embedding)
    np.testing.assert_allclose(table.std(), 7**-0.5, rtol=0.03)
    np.testing.assert_allclose(table.mean(), 0, atol=0.02)


@pytest.mark.parametrize("masked", [False, True])
def test_v2_supports_windows_and_positions(masked, rng):
    (x,) = arrays(rng, 47)
    settings = {"max_relative_position": 3, "masked": masked, "use_value_table": True}
    layer = RelativeMultiHeadAttentionV2(2, 5, **settings, sliding_window=5)
    outputs = layer(x, x)
    in_window = np.abs(distances(47)) < 5
    expected = relative_attention(layer, x, causal=masked, mask=in_window)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    positions = np.arange(47, dtype="int32")
    moved = layer(x, x, query_positions=positions + 3, key_positions=positions + 3)
    np.testing.assert_allclose(moved, expected, atol=1e-5)
    moved = layer(x, x, query_positions=positions + 2, key_positions=positions)
    in_window = np.abs(distances(47, query_offset=2)) < 5
    options = {"causal": masked, "mask": in_window, "query_offset": 2}
    np.testing.assert_allclose(moved, relative_attention(layer, x, **options), atol=1e-5)
