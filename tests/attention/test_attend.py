import sys

import keras
import numpy as np
import pytest
from keras import ops

from t2t_relpos.attention import attend, causal_mask
from t2t_relpos.attention.reference import dot_product_attention_relative

MODULE = sys.modules["t2t_relpos.attention.attend"]  # the package's attribute is the function

tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="a TensorFlow graph"
)

# (T, S, K): length 1, shorter than k, far longer than k, fewer queries than keys.
LENGTHS = [(1, 1, 2), (3, 3, 5), (7, 7, 3), (37, 37, 2), (5, 11, 3), (1, 13, 3)]


@pytest.fixture
def draw(rng, precision):
    """`draw(T, S, K)`: query, key, value and two tables."""

    def draw(length_q, length_k, k):
        shapes = [(2, 3, length_q, 5), (2, 3, length_k, 5), (2, 3, length_k, 5)]
        shapes += [(2 * k + 1, 5), (2 * k + 1, 5)]
        return [rng.normal(size=shape).astype(precision.dtype) for shape in shapes]

    return draw


@pytest.fixture(params=["lookup", "skew", "diagonals"])
def path(request, monkeypatch):
    """All ways of computing, whatever the lengths; diagonals where a matrix has them. How `attend` is called for it."""
    longest = {"lookup": 512, "skew": 0, "diagonals": 0}[request.param]
    monkeypatch.setattr(MODULE, "LONGEST_LOOKUP", longest)
    if request.param == "diagonals":
        if keras.backend.backend() != "tensorflow":
            pytest.skip("TensorFlow's own way to compute")
        from t2t_relpos.attention import _tensorflow_at_once

        settings = {
            "SHORTEST": 0,
            "SHORTEST_CAUSAL": 0,
            "LONGEST_SHORT": 9,
            "SHORT_STRETCH": 2,
            "LONG_STRETCH": 5,
        }
        for name, value in settings.items():
            monkeypatch.setattr(_tensorflow_at_once, name, value)
        return {"return_weights": False}
    return {}


def reference(query, key, value, key_table, value_table, bias=None):
    k = (key_table.shape[0] - 1) // 2
    return dot_product_attention_relative(
        query, key, value, bias, key_table, value_table, k, allow_memory=True
    )


@pytest.mark.parametrize("lengths", LENGTHS)
def test_equals_the_port_of_t2t(lengths, path, draw, precision):
    arrays = draw(*lengths)
    outputs, weights = attend(*arrays, **path)
    np.testing.assert_allclose(outputs, reference(*arrays), rtol=0, atol=precision.atol)
    if weights is not None:
        np.testing.assert_allclose(ops.sum(weights, axis=-1), 1, atol=precision.atol)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_masks_equal_the_bias_of_t2t(lengths, path, draw, precision):
    arrays = draw(*lengths)
    padding = np.ones((2, 1, 1, lengths[1]), bool)
    padding[1, ..., -1:] = lengths[1] == 1
    mask = ops.logical_and(padding, causal_mask(*lengths[:2]))
    # The reference's -1e9 and a row without keys differ on purpose.
    some = ops.convert_to_numpy(ops.any(mask, axis=-1))[..., None]
    bias = np.where(mask, 0.0, -1e9)
    outputs = ops.convert_to_numpy(attend(*arrays, mask=mask, **path)[0])
    expected = ops.convert_to_numpy(reference(*arrays, bias=bias))
    np.testing.assert_allclose(outputs * some, expected * some, rtol=0, atol=precision.atol)
    assert not (outputs * ~some).any()


@pytest.mark.parametrize("lengths", LENGTHS)
def test_gradients_equal_the_port_of_t2t(lengths, path, draw, precision, rng, output_and_gradients):
    arrays = draw(*lengths)
    cotangent = rng.normal(size=(2, 3, lengths[0], 5))
    _, ours = output_and_gradients(lambda xs: attend(*xs, **path)[0], arrays, cotangent)
    _, expected = output_and_gradients(lambda xs: reference(*xs), arrays, cotangent)
    for actual, theirs in zip(ours, expected, strict=True):
        np.testing.assert_allclose(actual, theirs, rtol=0, atol=10 * precision.atol)


@tensorflow_only
@pytest.mark.parametrize("lengths", LENGTHS)
def test_gradients_in_a_graph_of_unknown_lengths_are_the_same_and_dense(
    lengths, path, draw, output_and_gradients
):
    import tensorflow as tf

    arrays = [tf.constant(x) for x in draw(*lengths)]
    specs = [tf.TensorSpec((None, 3, None, 5), tf.float64)] * 3
    specs += [tf.TensorSpec(x.shape, tf.float64) for x in arrays[3:]]

    @tf.function(input_signature=specs)
    def gradients(*xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            outputs = attend(*xs, **path)[0]
        return tape.gradient(outputs, xs)

    _, expected = output_and_gradients(lambda xs: attend(*xs, **path)[0], arrays)
    for actual, theirs in zip(gradients(*arrays), expected, strict=True):
        assert isinstance(actual, tf.Tensor), "a sparse gradient"
        np.testing.assert_allclose(actual, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "dtype, tolerance", [("float32", 1e-5), ("bfloat16", 0.1), ("float16", 0.01)]
)
def test_lower_precision_is_near_float64(dtype, tolerance, draw):
    arrays = draw(7, 7, 3)
    outputs = attend(*[ops.cast(x, dtype) for x in arrays])[0]
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    expected = ops.convert_to_numpy(reference(*arrays))
    error = np.abs(ops.convert_to_numpy(ops.cast(outputs, "float32")) - expected).max()
    assert error < tolerance * np.abs(expected).max()


def test_tables_of_every_head_act_on_their_own_head(path, draw, precision, rng):
    query, key, value, _, _ = draw(7, 7, 3)
    key_tables, value_tables = rng.normal(size=(2, 3, 7, 5)).astype(precision.dtype)
    outputs = ops.convert_to_numpy(attend(query, key, value, key_tables, value_tables, **path)[0])
    for head in range(3):
        one = slice(head, head + 1)
        expected = reference(
            query[:, one], key[:, one], value[:, one], key_tables[head], value_tables[head]
        )
        np.testing.assert_allclose(outputs[:, one], expected, rtol=0, atol=precision.atol)


@pytest.mark.parametrize("tables", [(True, False), (False, True), (False, False)])
def test_a_table_that_is_off_is_a_table_of_zeros(tables, draw, precision):
    *qkv, key_table, value_table = draw(7, 7, 3)
    key_table, value_table = key_table * tables[0], value_table * tables[1]
    outputs = attend(*qkv, key_table if tables[0] else None, value_table if tables[1] else None)[0]
    expected = reference(*qkv, key_table, value_table)
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=precision.atol)


def test_k_0_is_one_row_for_every_pair(path, draw, precision):
    *qkv, key_table, value_table = draw(7, 7, 0)
    outputs = attend(*qkv, key_table, value_table, **path)[0]
    plain = ops.convert_to_numpy(attend(*qkv)[0])
    # The score term is the same for all keys of a query: softmax does not see it.
    np.testing.assert_allclose(outputs, plain + value_table[0], rtol=0, atol=precision.atol)


def test_an_empty_batch_has_gradients_of_zero(path, draw, output_and_gradients):
    arrays = [x[:0] if x.ndim == 4 else x for x in draw(7, 7, 3)]
    _, gradients = output_and_gradients(lambda xs: attend(*xs, **path)[0], arrays)
    assert [g.shape for g in gradients] == [x.shape for x in arrays]
    np.testing.assert_array_equal(gradients[3], 0)


def test_an_offset_for_every_row_equals_the_rows_alone(draw, precision):
    query, key, value, *tables = draw(1, 11, 3)
    offsets = np.array([4, 10], "int32")
    outputs = ops.convert_to_numpy(attend(query, key, value, *tables, query_offset=offsets)[0])
    for row in range(2):
        one = [x[row : row + 1] for x in (query, key, value)]
        expected = attend(*one, *tables, query_offset=int(offsets[row]))[0]
        np.testing.assert_allclose(outputs[row : row + 1], expected, rtol=0, atol=precision.atol)


def test_dropout_acts_on_both_terms(draw, precision):
    arrays = draw(7, 7, 3)
    twice = attend(*arrays, dropout=lambda weights: 2 * weights)[0]
    np.testing.assert_allclose(twice, 2 * attend(*arrays)[0], rtol=0, atol=precision.atol)


@pytest.mark.parametrize("lengths", [(61, 61, 2), (5, 61, 16)])
def test_long_sequences_make_no_tensor_of_all_pairs_and_depths(
    lengths, monkeypatch, draw, precision
):
    arrays = draw(*lengths)
    expected = attend(*arrays)[0]
    monkeypatch.setattr(MODULE, "LONGEST_LOOKUP", 16)
    monkeypatch.delattr(MODULE, "lookup_scores")
    monkeypatch.delattr(MODULE, "lookup_values")
    np.testing.assert_allclose(attend(*arrays)[0], expected, rtol=0, atol=precision.atol)
