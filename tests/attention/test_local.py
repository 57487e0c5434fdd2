import keras
import numpy as np
import pytest
from keras import ops

from t2t_relpos.attention import attend, attend_locally
from t2t_relpos.attention.masks import attention_mask_of


def draw(rng, length, k, heads=None):
    qkv = [rng.normal(size=(2, 3, length, 5)) for _ in range(3)]
    shape = (2 * k + 1, 5) if heads is None else (heads, 2 * k + 1, 5)
    return [*qkv, rng.normal(size=shape), rng.normal(size=shape)]


@pytest.mark.parametrize("length", [1, 7, 16, 17, 61, 97])
@pytest.mark.parametrize("window, k", [(1, 2), (5, 2), (23, 29)])
@pytest.mark.parametrize("causal", [False, True])
def test_equals_dense_attention_under_the_window_mask(length, window, k, causal, rng):
    arrays = draw(rng, length, k)
    outputs = attend_locally(*arrays, window=window, causal=causal)
    mask = attention_mask_of(length, length, causal=causal, window=window)
    np.testing.assert_allclose(outputs, attend(*arrays, mask=mask)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_masks_of_queries_and_keys(causal, rng):
    arrays = draw(rng, 61, 3, heads=3)
    masks = rng.random((2, 2, 61)) > 0.4
    outputs = attend_locally(*arrays, window=5, causal=causal, query_mask=masks[0], key_mask=masks[1])
    mask = attention_mask_of(
        61, 61, query_mask=masks[0], key_masks=[masks[1]], causal=causal, window=5
    )
    expected = ops.convert_to_numpy(attend(*arrays, mask=mask)[0])
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-12)
    assert not ops.convert_to_numpy(outputs).swapaxes(1, 2)[~masks[0]].any()


def test_dropout_sees_blocks_alone(rng):
    arrays = draw(rng, 97, 3)
    seen = []

    def dropout(weights):
        seen.append(tuple(weights.shape))
        return 2 * weights

    twice = attend_locally(*arrays, window=5, dropout=dropout)
    assert seen == [(2 * 7, 3, 16, 48)]  # 7 blocks of 16 positions, each with its neighbours
    np.testing.assert_allclose(twice, 2 * attend_locally(*arrays, window=5), rtol=0, atol=1e-12)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a TensorFlow graph")
def test_dynamic_lengths_and_gradients(rng):
    import tensorflow as tf

    arrays = [tf.constant(x) for x in draw(rng, 61, 3)]
    cotangent = rng.normal(size=(2, 3, 61, 5))

    def gradients(function, *xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            loss = tf.reduce_sum(function(*xs) * cotangent)
        return tape.gradient(loss, xs)

    specs = [tf.TensorSpec((None, 3, None, 5), tf.float64)] * 3
    specs += [tf.TensorSpec(x.shape, tf.float64) for x in arrays[3:]]
    local = tf.function(
        lambda *xs: gradients(lambda *ys: attend_locally(*ys, window=5), *xs), input_signature=specs
    )
    mask = attention_mask_of(61, 61, window=5)
    expected = gradients(lambda *xs: attend(*xs, mask=mask)[0], *arrays)
    for ours, theirs in zip(local(*arrays), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
