import numpy as np
import pytest

from t2t_relpos.attention.variants import attend_two_blocks


def attend_in_loops(query, key, value, key_table, value_table, b, key_mask=None):
    """Computes attention with loops over pairs. Tables have shape `[N, R, H]`."""
    batch, heads, length, _ = query.shape
    outputs = np.zeros((*query.shape[:-1], value.shape[-1]))
    for e, n, i in np.ndindex(batch, heads, length):
        first = max(0, i // b - 1) * b
        keys = [j for j in range(first, i + 1) if key_mask is None or key_mask[e, j]]
        if not keys:
            continue
        q = query[e, n, i]
        scores = np.array([q @ (key[e, n, j] + key_table[n, j - i - 1]) for j in keys])
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        for weight, j in zip(weights, keys):
            vector = value[e, n, j]
            if i >= b and length >= 2 * b:
                vector = vector + value_table[n, j - i - 1]
            outputs[e, n, i] += weight * vector
    return outputs


def tensors(rng, length, rows=12):
    shapes = [(2, 3, length, 5), (2, 3, length, 5), (2, 3, length, 7), (3, rows, 5), (3, rows, 7)]
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


@pytest.mark.parametrize("length", [1, 2, 3, 5, 6, 7, 11])
def test_outputs_equal_loops(length, rng):
    inputs = tensors(rng, length)
    outputs = attend_two_blocks(*inputs, block_length=3)
    np.testing.assert_allclose(outputs, attend_in_loops(*inputs, 3), atol=1e-5)


def test_table_rows_beyond_two_blocks_have_no_effect(rng):
    inputs = tensors(rng, 11)
    before = attend_two_blocks(*inputs, block_length=3)
    for table in inputs[3:]:
        table[:, :-6] = 1e3
    np.testing.assert_array_equal(attend_two_blocks(*inputs, block_length=3), before)


def test_masked_keys_have_no_effect(rng):
    inputs = tensors(rng, 11)
    mask = np.ones((2, 11), bool)
    mask[0, :2] = False  # The first two queries are fully masked.
    mask[1, 5] = False
    outputs = attend_two_blocks(*inputs, block_length=3, key_mask=mask)
    np.testing.assert_allclose(outputs, attend_in_loops(*inputs, 3, mask), atol=1e-5)
    np.testing.assert_array_equal(np.array(outputs)[0, :, :2], 0)


def test_dropout_receives_the_weights_of_blocks(rng):
    inputs = tensors(rng, 11)
    shapes = []

    def dropout(weights):
        shapes.append(tuple(weights.shape))
        return weights * 2

    outputs = attend_two_blocks(*inputs, block_length=3, dropout=dropout)
    np.testing.assert_allclose(outputs, 2 * attend_in_loops(*inputs, 3), atol=1e-5)
    # Four blocks per batch entry, each with two blocks of keys. No shape is quadratic in length.
    assert shapes == [(8, 3, 3, 6)]


def test_outputs_with_unknown_lengths(rng, tf):
    tables = tensors(rng, 1)[3:]
    spec = [tf.TensorSpec([None, 3, None, depth]) for depth in (5, 5, 7)]
    graph = tf.function(
        lambda *x: attend_two_blocks(*x, *tables, block_length=3), input_signature=spec
    )
    for length in (2, 5, 6, 11):
        inputs = [*tensors(rng, length)[:3], *tables]
        np.testing.assert_allclose(graph(*inputs[:3]), attend_in_loops(*inputs, 3), atol=1e-5)
