"""Tests of the ports beyond the comparison with tensor2tensor in test_recorded.py.

Position matrices, attention weights and graphs with unknown shapes are compared here.
"""

import functools

import keras
import numpy as np
import pytest
from compare_attention import ATTENTION_INPUTS, FAMILIES, FOLDER, LIMITS, load
from definition import attention_of_pairs
from keras import ops
from measurement import relative_error

from t2t_relpos.attention import reference

(FAMILY,) = (each for each in FAMILIES if each.ours == "reference.dot_product_attention_relative")
recordings = pytest.mark.parametrize("path", FAMILY.paths(), ids=lambda path: path.stem)


def assert_close(actual, expected):
    """Asserts equality. The tolerance is relative to the largest expected entry."""
    actual = ops.convert_to_numpy(actual)
    assert actual.dtype == expected.dtype
    assert relative_error(actual, expected) <= LIMITS[str(expected.dtype)]


def options_of(record):
    k, *flags = (record[x] for x in ("max_relative_position", "cache", "allow_memory"))
    return int(k), *map(bool, flags)


def random_inputs(length, rows=5, batch=2, heads=3, depth=7):
    rng = np.random.default_rng(0)
    shapes = 3 * [(batch, heads, length, depth)] + 2 * [(rows, depth)]
    arrays = (rng.normal(size=shape).astype("float32") for shape in shapes)
    return dict(zip(ATTENTION_INPUTS, arrays, strict=True))


def test_position_matrices_equal_tensor2tensor():
    matrices = load(FOLDER / "attention" / "positions_matrix.npz")
    assert len(matrices) == 43
    for key, expected in matrices.items():
        *numbers, cache = map(int, key.split("_"))
        actual = reference.relative_positions_matrix(*numbers, cache=bool(cache))
        actual = ops.convert_to_numpy(actual)
        assert actual.dtype == expected.dtype == np.int32
        np.testing.assert_array_equal(actual, expected, err_msg=key)


def test_position_matrix_is_zero_for_max_relative_position_0():
    actual = reference.relative_positions_matrix(2, 3, 0)
    np.testing.assert_array_equal(ops.convert_to_numpy(actual), np.zeros((2, 3)))


@recordings
def test_weights_equal_tensor2tensor(path):
    record = load(path)
    q, k, _, key_table, _ = (ops.convert_to_tensor(record[x]) for x in ATTENTION_INPUTS)
    max_relative_position, cache, allow_memory = options_of(record)
    length_q, length_k = q.shape[2] if allow_memory else k.shape[2], k.shape[2]
    relation_keys = reference.relative_position_embeddings(
        key_table, length_q, length_k, max_relative_position, cache
    )
    weights = reference._weights(q, k, record.get("bias"), relation_keys)
    assert_close(weights, record["weights"])


@recordings
def test_attention_of_pairs_equals_tensor2tensor(path):
    record = load(path)
    q, k, v, *tables = (record[x] for x in ATTENTION_INPUTS)
    max_relative_position, _, _ = options_of(record)
    bias = record.get("bias")
    lengths = q.shape[2], k.shape[2]
    output, weights = attention_of_pairs(
        *(q, k, v, *tables),
        max_relative_position=(max_relative_position, max_relative_position),
        query_positions=np.arange(lengths[0]) + lengths[1] - lengths[0],
        key_positions=np.arange(lengths[1]),
        mask=None if bias is None else bias == 0,
    )
    is_masked = np.zeros(1, bool) if bias is None else np.all(bias != 0, axis=-1, keepdims=True)
    for found, name in ((output, "output"), (weights, "weights")):
        assert_close(found, np.where(is_masked, 0, record[name]))


@functools.cache
def graph_with_unknown_shapes(dtype, heads, depth, max_relative_position, cache, allow_memory):
    """Returns a graph of the port. As in tensor2tensor, only heads and depth are known."""
    import tensorflow as tf

    shapes = 3 * [[None, heads, None, depth]] + [[None] * 4] + 2 * [[None, depth]]

    @tf.function(input_signature=[tf.TensorSpec(shape, dtype) for shape in shapes])
    def compute(*tensors):
        return reference.dot_product_attention_relative(
            *tensors, max_relative_position, cache=cache, allow_memory=allow_memory
        )

    return compute


@recordings
def test_attention_with_unknown_shapes(path, tf):
    record = load(path)
    q, k, v, *tables = (record[name] for name in ATTENTION_INPUTS)
    heads, depth = q.shape[1::2]
    compute = graph_with_unknown_shapes(str(q.dtype), heads, depth, *options_of(record))
    assert compute.get_concrete_function().structured_outputs.shape[0] is None
    bias = record.get("bias", np.zeros([1] * 4, q.dtype))
    assert_close(compute(q, k, v, bias, *tables), record["output"])


def test_bias_is_cast_to_the_dtype_of_the_logits():
    inputs = random_inputs(length=3)
    bias = np.zeros((1, 1, 3, 3))
    bias[..., 2] = -1e9
    output = reference.dot_product_attention_relative(**inputs, bias=bias, max_relative_position=2)
    assert keras.backend.standardize_dtype(output.dtype) == "float32"
    expected = reference.dot_product_attention_relative(
        **inputs, bias=bias.astype("float32"), max_relative_position=2
    )
    np.testing.assert_array_equal(ops.convert_to_numpy(output), ops.convert_to_numpy(expected))


def test_dropout_is_independent_per_weight_and_repeats_with_a_seed():
    # With v = 0 and a value table of ones, outputs are the sums of the kept weights.
    inputs = random_inputs(length=97)
    inputs["v"] = np.zeros_like(inputs["v"])
    inputs["q"] = np.zeros_like(inputs["q"])
    inputs["value_embeddings"] = np.ones_like(inputs["value_embeddings"])

    def sums(rate, seed=1):
        output = reference.dot_product_attention_relative(
            **inputs, bias=None, max_relative_position=2, dropout_rate=rate, seed=seed
        )
        return ops.convert_to_numpy(output)[..., 0]

    np.testing.assert_allclose(sums(0.0), 1.0, rtol=1e-5)
    dropped = sums(0.25)
    kept = dropped * 97 * 0.75
    np.testing.assert_allclose(kept, kept.round(), atol=1e-3)
    assert abs(dropped.mean() - 1.0) < 0.02
    # The number of kept weights differs between batch entries, heads and queries.
    assert (np.ptp(kept, axis=0) > 1).any()
    assert (np.ptp(kept, axis=1) > 1).any()
    assert (np.ptp(kept, axis=2) > 1).all()
    np.testing.assert_array_equal(dropped, sums(0.25))
    assert (dropped != sums(0.25, seed=2)).any()


ATTENTION = reference.dot_product_attention_relative
MATRIX = reference.relative_positions_matrix
EMBEDDINGS = reference.relative_position_embeddings
LENGTHS = {"length_q": 3, "length_k": 3}
VALID = {
    ATTENTION: random_inputs(3) | {"bias": None, "max_relative_position": 2},
    MATRIX: LENGTHS | {"max_relative_position": 2},
    EMBEDDINGS: LENGTHS | {"max_relative_position": 3, "table": np.ones((7, 7))},
}
FIVE, ELEVEN = random_inputs(5), random_inputs(11)
FIVE_AND_ELEVEN = {"q": FIVE["q"], "k": ELEVEN["k"], "v": ELEVEN["v"]}
MORE_QUERIES = "Expected at most as many queries as keys"


@pytest.mark.parametrize(
    ("function", "changes", "message"),
    [
        *(
            (
                function,
                {"max_relative_position": value},
                f"Expected max_relative_position to be an int of at least {smallest}",
            )
            for function, smallest in ((ATTENTION, 1), (MATRIX, 0))
            for value in (None, smallest - 1, 2.0, True)
        ),
        (MATRIX, {"length_q": 5}, MORE_QUERIES),
        (ATTENTION, {"q": FIVE["q"], "allow_memory": True}, MORE_QUERIES),
        (ATTENTION, {"dropout_rate": 1.0}, "Expected `dropout_rate` to be at least 0 and below 1"),
        (EMBEDDINGS, {"table": np.ones((5, 7))}, r"Expected `table` of shape \[R, H\] = \[7, \*\]"),
        *(
            (ATTENTION, {name: np.ones((5, 11))}, rf"`{name}` of shape \[R, H\] = \[5, 7\]")
            for name in ("key_embeddings", "value_embeddings")
        ),
        (ATTENTION, FIVE_AND_ELEVEN, r"`q` of .* \[2, 3, 11, 7\].* Pass allow_memory=True"),
        (
            ATTENTION,
            FIVE_AND_ELEVEN | {"cache": True},
            r"`q` of .* \[2, 3, 1, 7\].* With cache=True",
        ),
        (ATTENTION, {"v": random_inputs(2)["v"]}, r"`v` of .* = \[2, 3, 3, 7\]"),
        (ATTENTION, {"q": random_inputs(3)["q"][0]}, r"`q` of .* = \[2, 3, 3, 7\]"),
    ],
)
def test_ports_reject_invalid_arguments(function, changes, message):
    with pytest.raises(ValueError, match=message):
        function(**VALID[function] | changes)
