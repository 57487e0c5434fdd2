import numpy as np
import pytest
from comparisons import assert_all_close
from gradients import output_and_gradients
from keras import ops

from t2t_relpos.attention import attend, attend_locally
from t2t_relpos.attention.masks import make_attention_mask


# Blocks have 16 positions, or 22 with a window of 23.
@pytest.mark.parametrize(
    "length, window, k",
    [
        *((length, 5, 2) for length in (1, 7, 16, 17, 97)),
        *((length, 1, 2) for length in (17, 61)),
        *((length, 23, 29) for length in (17, 61, 97)),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_outputs_equal_dense_attention_with_a_window_mask(
    length, window, k, causal, draw, precision
):
    arrays = draw(length, length, k)
    outputs = attend_locally(*arrays, window=window, causal=causal)
    mask = make_attention_mask((length, length), causal=causal, window=window)
    np.testing.assert_allclose(outputs, attend(*arrays, mask=mask)[0], rtol=0, atol=precision.atol)


@pytest.mark.parametrize("causal", [False, True])
def test_query_and_key_masks_equal_a_dense_mask(causal, draw, rng, precision):
    arrays = draw(61, 61, 3, heads=3)
    masks = rng.random((2, 2, 61)) > 0.4
    outputs = attend_locally(
        *arrays, window=5, causal=causal, query_mask=masks[0], key_mask=masks[1]
    )
    pairs = masks[0][:, :, None] & masks[1][:, None]
    mask = make_attention_mask((61, 61), pairs, causal=causal, window=5)
    expected = ops.convert_to_numpy(attend(*arrays, mask=mask)[0])
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=precision.atol)
    assert not ops.convert_to_numpy(outputs).swapaxes(1, 2)[~masks[0]].any()


def test_dropout_receives_the_weights_of_blocks(draw, precision):
    arrays = draw(97, 97, 3)
    shapes = []

    def dropout(weights):
        shapes.append(tuple(weights.shape))
        return 2 * weights

    doubled = attend_locally(*arrays, window=5, dropout=dropout)
    assert shapes == [(2 * 7, 3, 16, 48)]  # 7 blocks of 16 positions, each with its neighbours
    np.testing.assert_allclose(
        doubled, 2 * attend_locally(*arrays, window=5), rtol=0, atol=precision.atol
    )


def test_gradients_equal_dense_attention(draw, rng, precision):
    arrays = draw(61, 61, 3)
    cotangent = rng.normal(size=(2, 3, 61, 5))
    mask = make_attention_mask((61, 61), window=5)
    _, gradients = output_and_gradients(lambda xs: attend_locally(*xs, window=5), arrays, cotangent)
    _, expected = output_and_gradients(lambda xs: attend(*xs, mask=mask)[0], arrays, cotangent)
    assert_all_close(gradients, expected, rtol=0, atol=10 * precision.atol)


def test_gradients_with_unknown_lengths(draw, tf):
    arrays = [tf.constant(x) for x in draw(61, 61, 3)]
    specs = [tf.TensorSpec((None, 3, None, 5), tf.float64)] * 3
    specs += [tf.TensorSpec(x.shape, tf.float64) for x in arrays[3:]]

    @tf.function(input_signature=specs)
    def gradients(*xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            outputs = attend_locally(*xs, window=5)
        return tape.gradient(outputs, xs)

    _, expected = output_and_gradients(lambda xs: attend_locally(*xs, window=5), arrays)
    assert_all_close(gradients(*arrays), expected, rtol=0, atol=1e-12)
