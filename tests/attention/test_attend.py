"""Tests of the arguments and results of `attend`."""

import keras
import numpy as np
import pytest
from comparisons import assert_all_close
from gradients import output_and_gradients
from keras import ops

from t2t_relpos.attention import (
    attend,
    dispatch,
    dot_product_attention_relative,
    relative_attention_inner,
    skew,
)
from t2t_relpos.attention.call import AttentionCall
from t2t_relpos.attention.t2t_variants import attend_2d, attend_two_blocks
from t2t_relpos.attention.tables import attend_by_scores

X = np.ones((2, 3, 7, 5), "float32")


def test_query_mask_zeroes_outputs_and_weights(draw):
    query_mask = np.arange(7)[None] < np.array([[7], [3]])
    outputs, weights = attend(*draw(7, 7, 3), query_mask=query_mask)
    for x in (outputs, weights):
        assert not ops.convert_to_numpy(x)[1, :, 3:].any()
        assert ops.convert_to_numpy(x)[1, :, :3].any()


@pytest.mark.parametrize("implementation", ["rows", "by_id", "without_tables", None])
@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (2, 5, 7), (2, 3, 5, 7), (1, 3, 1, 7)])
def test_bias_is_added_to_the_scores(shape, implementation, draw, rng, precision):
    tensors = draw(5, 7, 2)
    if implementation == "without_tables":
        tensors = tensors[:3]
    bias = rng.normal(size=shape).astype(precision.dtype)
    mask = rng.random((5, 7)) < 0.7
    outputs, weights = attend(*tensors, bias=bias, mask=mask, implementation=implementation)
    plain = ops.convert_to_numpy(attend(*tensors, mask=mask)[1])
    expected = plain * np.exp(bias[:, None] if len(shape) == 3 else bias)
    expected /= np.maximum(expected.sum(-1, keepdims=True), 1e-30)
    np.testing.assert_allclose(weights, expected, atol=precision.atol)
    again = attend(*tensors, bias=bias, mask=mask, return_weights=False)[0]
    np.testing.assert_allclose(outputs, again, atol=precision.atol)


def test_query_offset_per_batch_entry_equals_separate_calls(draw, precision):
    query, key, value, *tables = draw(1, 11, 3)
    offsets = np.array([4, 10], "int32")
    outputs = ops.convert_to_numpy(attend(query, key, value, *tables, query_offset=offsets)[0])
    for entry in range(2):
        one = [x[entry : entry + 1] for x in (query, key, value)]
        expected = attend(*one, *tables, query_offset=int(offsets[entry]))[0]
        np.testing.assert_allclose(
            outputs[entry : entry + 1], expected, rtol=0, atol=precision.atol
        )


@pytest.mark.parametrize("implementation", ["rows", "by_id", "blocks", None])
@pytest.mark.parametrize(
    "offset", [np.int64(2**31 - 1), np.array(2**31 - 1), np.array(250, "uint8")]
)
def test_query_offset_of_any_integer_dtype(offset, implementation, draw, precision):
    """Beyond K positions, results don't depend on the offset."""
    arrays = draw(5, 7, 3)
    options = {"causal": True, "return_weights": False, "implementation": implementation}
    outputs, _ = attend(*arrays, **options, query_offset=ops.convert_to_tensor(offset))
    expected, _ = attend(*arrays, **options, query_offset=20)
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=precision.atol)
    first = ops.convert_to_numpy(attend(*arrays, **options, query_offset=1 - 2**31)[0])
    assert not first.any(), "all keys are after the queries"


@pytest.mark.parametrize("lengths", [(0, 7), (7, 0), (0, 0)])
def test_rematerialized_attention_without_queries_or_keys(lengths, draw):
    arrays = draw(*lengths, 3)
    for tables in (arrays[3:], [None, None]):
        options = {"rematerialize": True, "return_weights": False}
        outputs, _ = attend(*arrays[:3], *tables, **options)
        np.testing.assert_array_equal(outputs, np.zeros((2, 3, lengths[0], 5)))


def test_dropout_applies_to_values_and_value_table(draw, precision):
    arrays = draw(7, 7, 3)
    doubled = ops.convert_to_numpy(attend(*arrays, dropout=lambda weights: 2 * weights)[0])
    expected = 2 * ops.convert_to_numpy(attend(*arrays)[0])
    np.testing.assert_allclose(doubled, expected, rtol=0, atol=precision.atol)


def dtype_of(x):
    return keras.backend.standardize_dtype(x.dtype)


@pytest.mark.parametrize("implementation", [None, *(row.name for row in dispatch.TABLE)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64:UserWarning")
def test_results_have_the_dtype_of_the_query(dtype, implementation, draw):
    """Keys, values and tables of other dtypes are cast. Gradients have the dtypes of tensors."""
    arrays, k = [x.astype("float32") for x in draw(11, 11, 2)], 2
    if implementation == "without_tables":
        arrays, k = arrays[:3], None
    query = ops.cast(arrays[0], dtype)
    options = {"return_weights": False, "implementation": implementation}
    if implementation is not None:
        call = AttentionCall.from_arguments(11, 11, k, query=query, value=query)
        unmet, _ = dispatch.by_name(implementation).match(call, ignore_preferences=True)
        if unmet is not None:
            pytest.skip(f"{implementation} requires {unmet.text}")

    def compute(xs, cast_others):
        xs = [ops.cast(xs[0], dtype), *(ops.cast(x, dtype) if cast_others else x for x in xs[1:])]
        outputs, _ = attend(*xs, **options)
        assert dtype_of(outputs) == dtype_of(query)
        return ops.cast(outputs, "float32")

    found = output_and_gradients(lambda xs: compute(xs, False), arrays)
    expected = output_and_gradients(lambda xs: compute(xs, True), arrays)
    assert_all_close(found, expected, rtol=1e-6, atol=1e-6)
    assert {x.dtype for x in found[1]} == {np.dtype("float32")}


@pytest.mark.parametrize("length", [6, 40, 150])
def test_weights_and_outputs_of_all_lengths_have_the_dtype_of_the_query(length, draw):
    query, *others = draw(length, length, 2)
    query = ops.cast(query, "bfloat16")
    for mask in (None, np.ones((length, length), "uint8")):
        outputs, weights = attend(query, *others, mask=mask)
        without_weights, _ = attend(query, *others, mask=mask, return_weights=False)
        results = outputs, weights, without_weights
        assert [dtype_of(x) for x in results] == ["bfloat16"] * 3


def port_without_bias(q, k, v, *tables):
    return dot_product_attention_relative(q, k, v, None, *tables, 2)


@pytest.mark.parametrize(
    "function, shapes, options",
    [
        (attend_two_blocks, [(1, 2, 7, 4)] * 3 + [(12, 4)] * 2, {"block_length": 3}),
        (attend_2d, [(1, 2, 3, 5, 4)] * 3 + [(5, 4), (7, 4)], {}),
        (relative_attention_inner, [(1, 2, 7, 4)] * 2 + [(7, 7, 4)], {"transpose": True}),
        (port_without_bias, [(1, 2, 7, 4)] * 3 + [(5, 4)] * 2, {}),
    ],
)
def test_other_functions_cast_to_the_dtype_of_the_query(function, shapes, options, rng):
    first, *others = (rng.normal(size=shape).astype("float32") for shape in shapes)
    first = ops.cast(first, "bfloat16")
    found = keras.tree.flatten(function(first, *others, **options))
    assert {dtype_of(x) for x in found} == {"bfloat16"}
    expected = function(first, *(ops.cast(x, "bfloat16") for x in others), **options)
    found, expected = (
        [ops.cast(x, "float32") for x in keras.tree.flatten(xs)] for xs in (found, expected)
    )
    assert_all_close(found, expected, rtol=0, atol=0)


def test_tables_of_arbitrary_ids_may_have_an_even_number_of_rows():
    tables = np.arange(20.0, dtype="float32").reshape(4, 5), np.ones((4, 5), "float32")
    outputs, _ = attend(X, X, X, *tables, relative_ids=np.full((7, 7), 3))
    np.testing.assert_allclose(outputs, 2 * X, rtol=1e-6)


def test_int32_lengths_do_not_overflow_in_conditions(tf):
    length = tf.constant(50_000)
    call = AttentionCall(length, length, 16, backend="tensorflow", xla=False, device="cpu")
    candidates = dispatch.select(call)
    holds = [c.implementation.name for c in candidates if c.condition is True or bool(c.condition)]
    assert holds[0] == "rematerialized_blocks"


def test_ragged_tensors_raise(tf):
    ragged = tf.RaggedTensor.from_tensor(X, lengths=([3, 3], [7, 7, 7, 5, 5, 5]))
    mask = tf.RaggedTensor.from_tensor(np.ones((2, 7), bool), lengths=[7, 5])
    tables = np.ones((5, 5), "float32"), np.ones((5, 5), "float32")
    for call in (
        lambda: attend(ragged, X, X),
        lambda: attend(X, ragged, X),
        lambda: attend(X, X, X, key_mask=mask),
        lambda: attend(X, X, X, query_mask=mask),
        lambda: attend_two_blocks(ragged, ragged, ragged, tables[0], block_length=2),
        lambda: dot_product_attention_relative(ragged, X, X, None, *tables, 2),
    ):
        with pytest.raises(ValueError, match="to be dense. Received: a RaggedTensor of shape"):
            call()


def table(*shape):
    return np.ones(shape, "float32")


def with_ids(ids):
    return {"key_table": table(4, 5), "relative_ids": ids}


@pytest.mark.parametrize(
    "lengths, options, distances",
    [
        ((7, 7), {}, (7, 7)),
        ((7, 7), {"causal": True}, (7, 0)),
        ((7, 7), {"sliding_window": 3}, (3, 3)),
        ((3, 11), {}, (11, 3)),
        ((7, 5), {"query_offset": 20}, (27, 1)),
        ((7, 5), {"query_offset": -20}, (1, 25)),
        ((0, 7), {}, (7, 1)),
        ((64, 64), {}, (50, 60)),
        ((7, 7), {"query_offset": np.array([0, 1])}, (50, 60)),
        ((7, 7), {"relative_ids": np.zeros((7, 7), int)}, (50, 60)),
    ],
    ids=str,
)
def test_implementations_get_the_table_rows_of_distances_that_occur(lengths, options, distances):
    """And one more on each side but for causality, so that no distance is clipped."""
    calls, table = [], np.arange(555, dtype="float32").reshape(111, 5)
    query, key = (np.ones((2, 3, length, 5), "float32") for length in lengths)

    def record(call):
        calls.append(call)
        return attend_by_scores(skew.attend_by_id, call)

    row = dispatch.Implementation("recorded", record, 0, (), reads_tables=True)
    options = {"max_relative_position": (50, 60), "implementation": row, **options}
    attend(query, key, key, table, None, **options)
    assert calls[0].distances == distances
    rows = table[50 - distances[0] : 51 + distances[1]]
    np.testing.assert_array_equal(calls[0].key_table, rows)


FLOAT_MASKS = {"mask": table(7, 7), "key_mask": table(2, 7), "query_mask": table(2, 7)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"key_table": table(6, 5)},
            "tables with an odd number of rows, R = 2 .* Received: 6 rows. Pass max_relative_pos",
        ),
        (
            {"key_table": table(6, 5), "max_relative_position": (3, 1)},
            r"tables with 5 rows, .* max_relative_position=\(3, 1\). Received: 6 rows",
        ),
        ({"value_table": table(1, 7, 5)}, r"Received: shape \(1, 7, 5\)"),
        ({"value_table": table(5)}, r"Received: shape \(5,\)"),
        (
            {"key_table": table(5, 5), "value_table": table(7, 5)},
            r"`value_table` of shape \[R, Hv\] = \[5, \*\] or \[N, R, Hv\] = \[3, 5, \*\]. "
            r"Received: shape \(7, 5\). Both tables have the same number of rows",
        ),
        (
            with_ids(np.full((7, 7), -1)),
            r"`relative_ids` in \[0, 4\). Received: values from -1 to -1. They are the rows",
        ),
        (with_ids(np.zeros((7, 7), "float32")), "Expected `relative_ids` of an integer dtype"),
        (
            with_ids(np.zeros(7, int)),
            r"Expected `relative_ids` of shape \[T, S\] or \[B, T, S\]. Received: shape \(7,\)",
        ),
        ({"query": np.ones((2, 3, 7, 5), "int32")}, "Expected `query` of a floating-point dtype"),
        (
            {"value": X[:, :, 1:]},
            r"`value` of shape \[B, G, S, Hv\] = \[2, 3, 7, \*\]. Received: shape \(2, 3, 6, 5\). "
            "Query, key and value have the same batch size B",
        ),
        ({"key": X[:1]}, r"`key` of .* = \[2, \*, \*, 5\]. Received: shape \(1, 3, 7, 5\)"),
        ({"key": X[..., 1:]}, r"`key` of .* = \[2, \*, \*, 5\]. Received: shape \(2, 3, 7, 4\)"),
        ({"value": X[:, :1]}, r"`value` of .* = \[2, 3, 7, \*\]. Received: shape \(2, 1, 7, 5\)"),
        (
            {"key_mask": np.ones((2, 6), bool)},
            r"`key_mask` of shape \[B, S\] = \[2, 7\]. Received: shape \(2, 6\)",
        ),
        (
            {"query_mask": np.ones((2, 1, 7), bool)},
            r"`query_mask` of shape \[B, T\] = \[2, 7\]. Received: shape \(2, 1, 7\)",
        ),
        ({"mask": np.ones((7, 6), bool)}, r"`mask` of .*\[T, S\] = \[7, 7\] or .*\(7, 6\)"),
        ({"query": X[0]}, r"Expected `query` of shape \[B, N, T, H\]. Received: shape \(3, 7, 5\)"),
        (
            {"bias": table(2, 7, 6)},
            r"`bias` of shape .* \[B, T, S\] = \[2, 7, 7\] .*Received: shape \(2, 7, 6\)",
        ),
        ({"rematerialize": "yes"}, "Expected `rematerialize` to be True, .* Received: 'yes'"),
        ({"query_offset": [0, 1]}, r"Expected `query_offset` to be an int, .* Received: \[0, 1\]"),
        ({"sliding_window": 0}, "Expected `sliding_window` to be a positive integer. Received: "),
        *(
            (
                {name: mask},
                f"Expected `{name}` to be boolean, True = attend. Received: dtype float32",
            )
            for name, mask in FLOAT_MASKS.items()
        ),
        *(
            (
                {name: np.full_like(mask, -10_000, "int32")},
                f"Expected `{name}` to be boolean, .* dtype int32 with values from -10000 to",
            )
            for name, mask in FLOAT_MASKS.items()
        ),
    ],
)
def test_attend_raises(arguments, message):
    with pytest.raises(ValueError, match=message):
        attend(**{"query": X, "key": X, "value": X} | arguments)
