import numpy as np
import pytest
from keras import ops
from layer_checks import check_layer

from t2t_relpos.layers import RelativeMultiHeadAttention2D


def image(rng, height=3, width=5, depth=6):
    return rng.normal(size=(2, height, width, depth)).astype("float32")


def make(**settings):
    settings = {"num_heads": 2, "key_dim": 5, "max_relative_position": 2, **settings}
    return RelativeMultiHeadAttention2D(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"share_heads": True, "value_dim": 7, "output_shape": 11, "use_bias": False},
        {"table_initializer": "zeros", "use_gate": True, "dropout": 0.1, "seed": 5},
    ],
)
def test_attention_2d_contract(settings, rng):
    check_layer(
        lambda dtype: make(dtype=dtype, **settings),
        [image(rng), image(rng)],
        output_shape=(2, 3, 5, settings.get("output_shape", 6)),
    )


@pytest.mark.parametrize("share_heads, shape", [(True, (3, 5)), (False, (2, 3, 5))])
def test_attention_2d_table_shapes(share_heads, shape):
    layer = make(share_heads=share_heads)
    layer.build((None, None, None, 6), (None, None, None, 6))
    assert layer.height_embedding.shape == layer.width_embedding.shape == shape


def test_attention_2d_returns_softmax_weights(rng):
    outputs, scores = make()(image(rng), image(rng), return_attention_scores=True)
    assert outputs.shape == (2, 3, 5, 6)
    assert scores.shape == (2, 2, 15, 15)
    np.testing.assert_allclose(ops.sum(scores, axis=-1), 1, atol=1e-6)


def test_attention_2d_of_a_transposed_image_uses_transposed_tables(rng):
    x = image(rng)
    layer, transposed = make(), make()
    layer(x, x), transposed(x, x)
    transposed.set_weights(layer.get_weights())
    transposed.height_embedding.assign(layer.width_embedding)
    transposed.width_embedding.assign(layer.height_embedding)
    y = x.swapaxes(1, 2)
    np.testing.assert_allclose(transposed(y, y), np.swapaxes(layer(x, x), 1, 2), atol=1e-6)


def test_attention_2d_masks_cells(rng):
    x = image(rng)
    layer = make(use_bias=False)
    full = ops.convert_to_numpy(layer(x[:, :2], x[:, :2]))
    real = np.ones((2, 3, 5), bool)
    real[:, 2] = False
    for masks in (
        {"value_mask": real},
        {"key_mask": real},
        {"attention_mask": real.reshape(2, 1, 15)},
    ):
        outputs = ops.convert_to_numpy(layer(x, x, **masks))
        np.testing.assert_allclose(outputs[:, :2], full, atol=1e-6)
    outputs = ops.convert_to_numpy(layer(x, x, query_mask=real))
    np.testing.assert_array_equal(outputs[:, 2], 0)
    assert (outputs[:, :2] != 0).any()


def test_attention_2d_rejects_invalid_arguments(rng):
    x = image(rng)
    message = "`max_relative_position` to be a positive integer. Received: .*=0"
    with pytest.raises(ValueError, match=message):
        make(max_relative_position=0)
    message = (
        r"Expected `query` of shape \[batch, height, width, depth\]. Received: shape \(2, 3, 5\)"
    )
    with pytest.raises(ValueError, match=message):
        make()(x[..., 0], x)
    message = r"of the same height and width.*Received: shapes \(2, 3, 5, 6\), \(2, 3, 7, 6\)"
    with pytest.raises(ValueError, match=message):
        make()(x, image(rng, 3, 7))
