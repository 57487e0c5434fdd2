import keras
import numpy as np
import pytest
from keras import ops
from layer_checks import check_layer

from t2t_relpos.layers import LocalRelativeMultiHeadAttention, RelativeMultiHeadAttentionV2


def sequence(rng, length=11, depth=6):
    return rng.normal(size=(2, length, depth)).astype("float32")


def make(**settings):
    settings = {"num_heads": 2, "key_dim": 5, "block_length": 3, **settings}
    return LocalRelativeMultiHeadAttention(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"share_heads": True, "value_dim": 7, "output_shape": 11, "use_value_table": True},
        {"table_initializer": "zeros", "use_gate": True, "dropout": 0.1, "seed": 5},
    ],
)
def test_local_attention_contract(settings, rng):
    check_layer(
        lambda dtype: make(dtype=dtype, **settings),
        [sequence(rng), sequence(rng)],
        output_shape=(2, 11, settings.get("output_shape", 6)),
    )


@pytest.mark.parametrize("share_heads, heads", [(True, ()), (False, (2,))])
def test_local_attention_table_shapes(share_heads, heads):
    layer = make(share_heads=share_heads, use_value_table=True, value_dim=7)
    layer.build((None, None, 6), (None, None, 6))
    assert layer.key_embedding.shape == (*heads, 12, 5)
    assert layer.value_embedding.shape == (*heads, 12, 7)


def test_local_attention_of_two_blocks_equals_masked_v2(rng):
    x = sequence(rng, 6)
    layer = make()
    masked = RelativeMultiHeadAttentionV2(2, 5, 12, masked=True)
    layer(x, x), masked(x, x)
    masked.set_weights(layer.get_weights())
    np.testing.assert_allclose(layer(x, x), masked(x, x), atol=1e-6)


def test_local_attention_attends_to_the_current_and_the_previous_block(rng):
    x = sequence(rng)
    layer = make()
    before = ops.convert_to_numpy(layer(x, x))
    for j in range(11):
        changed = x.copy()
        changed[:, j] += 1
        outputs = ops.convert_to_numpy(layer(x, changed))
        affected = [i for i in range(11) if (outputs[:, i] != before[:, i]).any()]
        assert affected == [i for i in range(j, 11) if i // 3 - j // 3 <= 1]


def test_local_attention_ignores_masked_keys(rng):
    x = sequence(rng, 5)
    layer = make(use_bias=False)
    expected = ops.convert_to_numpy(layer(x[:, 2:], x[:, 2:]))
    real = np.array([[False, False, True, True, True]] * 2)
    for masks in ({"value_mask": real}, {"key_mask": real}, {"value_mask": real, "key_mask": real}):
        outputs = ops.convert_to_numpy(layer(x, x, **masks))
        np.testing.assert_allclose(outputs[:, 2:], expected, atol=1e-6)
        np.testing.assert_array_equal(outputs[:, :2], 0)
    outputs = ops.convert_to_numpy(layer(x, x, query_mask=real))
    np.testing.assert_array_equal(outputs[:, :2], 0)
    assert (outputs[:, 2:] != 0).all()


def test_local_attention_uses_the_mask_of_an_embedding():
    ids = np.array([[3, 5, 2, 0, 0], [1, 2, 3, 4, 5]])
    x = keras.layers.Embedding(7, 6, mask_zero=True)(ids)
    outputs = make(use_bias=False)(x, x)
    np.testing.assert_array_equal(outputs._keras_mask, ids != 0)
    np.testing.assert_array_equal(ops.convert_to_numpy(outputs)[0, 3:], 0)


def test_local_attention_rejects_invalid_arguments(rng):
    with pytest.raises(ValueError, match="`block_length` to be a positive integer. Received: .*=0"):
        make(block_length=0)
    message = r"of the same length: this is self-attention.*\(2, 11, 6\), value shape \(2, 7, 6\)"
    with pytest.raises(ValueError, match=message):
        make()(sequence(rng), sequence(rng, 7))
