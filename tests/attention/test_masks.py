import numpy as np
import pytest
from keras import ops

from t2t_relpos.attention import (
    causal_mask,
    combine_masks,
    key_padding_mask,
    make_attention_mask,
    masked_softmax,
    window_mask,
)
from t2t_relpos.layers import Packing


@pytest.mark.parametrize("positions", [None, (np.arange(3), np.arange(3))])
def test_window_masks_reject_invalid_windows(positions):
    with pytest.raises(ValueError, match="Expected `window` to be a positive integer"):
        make_attention_mask((3, 3), causal=True, window=0, positions=positions)


@pytest.mark.parametrize("offset", [2**31 - 1, 2**31 - 2, np.array([2**31 - 2], "int64")])
def test_masks_of_the_last_positions(offset):
    assert ops.convert_to_numpy(causal_mask(2, 2, offset)).all()
    assert not ops.convert_to_numpy(window_mask(2, 2, 2**31 - 3, offset)).any()
    assert not ops.convert_to_numpy(causal_mask(2, 2, 2 - 2**31)).any()
    assert ops.convert_to_numpy(window_mask(2, 2, 2**40, offset)).all()


def test_masks_of_positions_at_any_distance():
    """Distances of up to 2**32 - 2 do not fit into int32."""
    positions = np.array([1 - 2**31, 2 - 2**31, -7, 0, 5, 2**31 - 2, 2**31 - 1])
    distances = positions - positions[:, None]
    masks = {"causal": distances <= 0}
    masks |= {window: abs(distances) < window for window in (1, 6, 13, 2**31 - 6, 2**31 - 1)}
    for name, expected in masks.items():
        options = {"causal": True} if name == "causal" else {"window": name}
        found = make_attention_mask((7, 7), positions=(positions,) * 2, **options)
        np.testing.assert_array_equal(found, expected, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize(
    "function",
    [
        combine_masks,
        key_padding_mask,
        lambda mask: make_attention_mask((3, 3), mask),
        lambda mask: masked_softmax(np.ones((3, 3), "float32"), mask),
        Packing,
    ],
)
def test_mask_functions_reject_additive_masks(function, dtype):
    bias = np.where(np.tri(3), 0, -10_000).astype(dtype)
    with pytest.raises(ValueError, match=f"Expected `mask` to be boolean, .* dtype {dtype}"):
        function(bias)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_integers_of_0_and_1_are_masks(dtype, rng):
    mask = rng.random((2, 3, 3)) > 0.5
    found = make_attention_mask((3, 3), mask.astype(dtype), causal=True)
    np.testing.assert_array_equal(found, (mask & np.tri(3, dtype=bool))[:, None])


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
