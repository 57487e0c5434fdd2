import keras
import numpy as np
import pytest
from gradients import output_and_gradients
from keras import ops

from t2t_relpos.attention import (
    causal_mask,
    combine_masks,
    key_padding_mask,
    make_attention_mask,
    masked_softmax,
    window_mask,
)


def test_causal_mask_is_aligned_with_the_last_key():
    np.testing.assert_array_equal(causal_mask(3, 3), np.tril(np.ones((3, 3), bool)))
    np.testing.assert_array_equal(causal_mask(1, 3), [[True, True, True]])
    np.testing.assert_array_equal(
        causal_mask(2, 3, query_offset=0), [[True, False, False], [True, True, False]]
    )


@pytest.mark.parametrize("window", [0, -1, 1.5])
def test_window_masks_reject_invalid_windows(window):
    message = f"Expected `window` to be a positive integer. Received: window={window}"
    for positions in (None, (np.arange(3), np.arange(3))):
        with pytest.raises(ValueError, match=message):
            make_attention_mask((3, 3), causal=True, window=window, positions=positions)
    with pytest.raises(ValueError, match=message):
        window_mask(3, 3, window)


def test_window_mask_includes_the_position_of_the_query():
    np.testing.assert_array_equal(window_mask(3, 3, 1), np.eye(3, dtype=bool))
    np.testing.assert_array_equal(
        window_mask(3, 3, 2), [[True, True, False], [True, True, True], [False, True, True]]
    )


def test_combine_masks_broadcasts_and_ignores_none(rng):
    assert combine_masks(None, None) is None
    keys = rng.random((2, 5)) > 0.5
    pairs = rng.random((2, 3, 5)) > 0.5
    combined = combine_masks(key_padding_mask(keys), None, pairs)
    np.testing.assert_array_equal(combined, keys[:, None, None, :] & pairs[:, None])


def test_masked_softmax_is_zero_for_masked_entries_and_rows(rng, precision):
    scores = rng.normal(size=(2, 5)).astype(precision.dtype)
    mask = np.array([[True, False, True, False, False], [False] * 5])
    weights = ops.convert_to_numpy(masked_softmax(scores, mask))
    kept = np.exp(scores[0, [0, 2]])
    np.testing.assert_allclose(weights[0, [0, 2]], kept / kept.sum(), atol=precision.atol)
    np.testing.assert_array_equal(weights[0, [1, 3, 4]], 0)
    np.testing.assert_array_equal(weights[1], 0)


def test_masked_softmax_gradient_equals_finite_differences(rng, precision):
    scores, cotangent = rng.normal(size=(2, 2, 3, 5)).astype(precision.dtype)
    mask = rng.random((3, 5)) > 0.5
    mask[1] = False
    step = 1e-6 if precision.dtype == "float64" else 1e-2
    shifted = []
    for sign in (1, -1):
        inputs = scores + sign * step * np.eye(15, dtype=precision.dtype).reshape(15, 1, 3, 5)
        shifted.append(ops.convert_to_numpy(masked_softmax(inputs, mask)))
    _, gradient = output_and_gradients(lambda x: masked_softmax(x, mask), scores, cotangent)
    derivatives = (shifted[0] - shifted[1]) / (2 * step)
    expected = np.einsum("mbts,bts->bm", derivatives, cotangent).reshape(scores.shape)
    np.testing.assert_allclose(
        gradient, expected, atol=1e-8 if precision.dtype == "float64" else 1e-3
    )
    np.testing.assert_array_equal(gradient[:, ~mask], 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_masked_softmax_returns_low_precision_dtypes(dtype, rng):
    scores = ops.cast(rng.normal(size=(3, 7)), dtype)
    weights = masked_softmax(scores)
    assert keras.backend.standardize_dtype(weights.dtype) == dtype
    sums = ops.convert_to_numpy(ops.sum(ops.cast(weights, "float32"), axis=-1))
    np.testing.assert_allclose(sums, 1, atol=2e-2)


def test_masked_softmax_of_a_single_key_is_one():
    np.testing.assert_array_equal(
        masked_softmax(np.array([[3.0], [-7.0]], "float32")), [[1.0], [1.0]]
    )
