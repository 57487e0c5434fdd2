"""Compares `attend` with a dense definition: relative queries, grouped queries, sinks, log-sums.

Queries and tables that all rows support have their cases in test_implementations.py.
"""

import keras
import numpy as np
import pytest
from gradients import output_and_gradients
from keras import ops

from t2t_relpos.attention import attend, dispatch, explain
from t2t_relpos.attention.call import AttentionCall
from t2t_relpos.attention.dropout import AttentionDropout

BATCH, HEADS, GROUPS, DEPTH, TABLE_DEPTH = 2, 4, 2, 5, 7
NAMES = "rows", "by_id", "by_id with a gather", "blocks", "blocks in a loop"
NAMES = [*NAMES, "flash", "flash without a kernel"]


@pytest.fixture(params=NAMES)
def implementation(request, small_block_implementations):
    return small_block_implementations[request.param]


def run(implementation, arrays, **options):
    """Returns the results of `attend`. Skips the test if the implementation does not support it."""
    shapes = {name: x for name, x in arrays.items() if name in ("query", "key", "value")}
    lengths = shapes["query"].shape[2], shapes["key"].shape[2]
    described = {n: x for n, x in options.items() if n not in ("return_log_sums", "implementation")}
    call = AttentionCall.from_arguments(
        *lengths,
        described.pop("max_relative_position"),
        needs_log_sums=True,
        **described,
        **{name: ops.convert_to_tensor(x) for name, x in shapes.items()},
    )
    unmet, _ = implementation.match(call, ignore_preferences=True)
    if unmet is not None:
        pytest.skip(f"{implementation.name} requires {unmet.text}")
    return attend(**arrays, **options, return_log_sums=True, implementation=implementation)


def draw_arrays(rng, dtype, lengths, distances, *, groups=HEADS, heads_of_table=None, sinks=()):
    """Returns the tensors of a call by name. The key table has queries of its own."""
    (length_q, length_k), num_ids = lengths, sum(distances) + 1
    lead = () if heads_of_table is None else (heads_of_table,)
    shapes = {
        "query": (BATCH, HEADS, length_q, DEPTH),
        "key": (BATCH, groups, length_k, DEPTH),
        "value": (BATCH, groups, length_k, DEPTH),
        "relative_query": (BATCH, HEADS, length_q, TABLE_DEPTH),
        "key_table": (*lead, num_ids, TABLE_DEPTH),
        "value_table": (*lead, num_ids, DEPTH),
        "sinks": sinks,
    }
    return {n: rng.normal(size=shape).astype(dtype) for n, shape in shapes.items() if shape}


def distances_of_pairs(lengths, offset):
    return np.arange(lengths[1]) - (np.arange(lengths[0])[:, None] + offset)


def valid_pairs(lengths, offset, causal=False, sliding_window=None, key_mask=None):
    """Returns bool `[B or 1, 1, T, S]`."""
    distance = distances_of_pairs(lengths, offset)
    is_valid = np.ones((1, 1, *lengths), bool)
    if causal:
        is_valid = is_valid & (distance <= 0)
    if sliding_window is not None:
        is_valid = is_valid & (abs(distance) < sliding_window)
    return is_valid if key_mask is None else is_valid & key_mask[:, None, None]


def dense(tensors, distances, offset, is_valid, beyond="clip"):
    """Returns (outputs, weights, log-sum-exp `[B, N, T]`), from the table rows of all pairs.

    A fully masked query has a log-sum-exp of -1e9.
    """
    distance, (left, right) = distances_of_pairs(is_valid.shape[2:], offset), distances
    ids = np.clip(distance, -left, right) + left
    has_row = (
        (distance >= -left) & (distance <= right) if beyond == "zero" else distance == distance
    )

    def vectors(name):
        rows = ops.take(tensors[name], ids, axis=-2)
        return rows * ops.cast(has_row[..., None], rows.dtype)

    repeats = HEADS // tensors["key"].shape[1]
    key, value = (ops.repeat(tensors[name], repeats, axis=1) for name in ("key", "value"))
    scores = ops.matmul(tensors["query"], ops.swapaxes(key, -1, -2))
    relative_query = ops.expand_dims(tensors["relative_query"], 3)
    scores = scores + ops.sum(relative_query * vectors("key_table"), axis=-1)
    scores = ops.where(is_valid, scores, -1e9)
    log_sums = all_sums = ops.logsumexp(scores, axis=-1, keepdims=True)
    if "sinks" in tensors:
        sinks = tensors["sinks"]
        sinks = sinks[:, None, None] if len(sinks.shape) == 1 else sinks[..., None]
        all_sums = ops.logaddexp(log_sums, sinks)
    weights = ops.where(is_valid, ops.exp(scores - all_sums), 0.0)
    values = ops.expand_dims(value, 2) + vectors("value_table")
    outputs = ops.sum(ops.expand_dims(weights, -1) * values, axis=3)
    return outputs, weights, log_sums[..., 0]


def joined(outputs, weights, log_sums, is_valid):
    """Returns results as one tensor, without the log-sum-exp of fully masked queries."""
    log_sums = ops.where(is_valid.any(-1), log_sums, 0.0)
    results = [outputs, log_sums[..., None]]
    return ops.concatenate(results if weights is None else [*results, weights], axis=-1)


# Tables have fewer rows than H, or more than 2H: these are long.
SHORT, LONG, RIGHT = (2, 1), (17, 5), (0, 3)
CASES = [
    {"lengths": (23, 23), "distances": SHORT},
    {"lengths": (23, 23), "distances": LONG},
    {"lengths": (23, 23), "distances": RIGHT, "groups": GROUPS, "sinks": (HEADS,)},
    {"lengths": (23, 23), "distances": SHORT, "groups": GROUPS, "beyond": "zero"},
    {"lengths": (23, 23), "distances": LONG, "heads_of_table": HEADS, "causal": True},
    {
        "lengths": (23, 23),
        "distances": SHORT,
        "groups": 1,
        "masks": True,
        "sinks": (BATCH, HEADS, 23),
        "causal": True,
        "beyond": "zero",
    },
    {"lengths": (19, 26), "distances": LONG, "query_offset": 3, "masks": True},
    # A later part of a prompt, with a cache of the keys before it.
    {
        "lengths": (9, 31),
        "distances": LONG,
        "groups": GROUPS,
        "masks": True,
        "causal": True,
        "beyond": "zero",
    },
    {"lengths": (1, 31), "distances": LONG, "groups": GROUPS, "causal": True, "beyond": "zero"},
    {
        "lengths": (23, 23),
        "distances": LONG,
        "groups": GROUPS,
        "sinks": (HEADS,),
        "causal": True,
        "sliding_window": 6,
    },
    {
        "lengths": (23, 23),
        "distances": SHORT,
        "groups": GROUPS,
        "beyond": "zero",
        "sliding_window": 9,
    },
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_and_gradients_equal_the_definition(
    case, implementation, rng, precision, assert_close
):
    options = {name: case[name] for name in ("causal", "sliding_window") if name in case}
    lengths, distances = case["lengths"], case["distances"]
    arguments = {n: case[n] for n in ("groups", "heads_of_table", "sinks") if n in case}
    arrays = draw_arrays(rng, precision.dtype, lengths, distances, **arguments)
    if case.get("masks"):
        options["key_mask"] = rng.random((BATCH, lengths[1])) < 0.7
        options["key_mask"][0] = False  # all queries of a sequence are fully masked
    offset, beyond = case.get("query_offset", lengths[1] - lengths[0]), case.get("beyond", "clip")
    is_valid = valid_pairs(lengths, offset, **options)
    return_weights = implementation.name in ("rows", "by_id")

    def compute(tensors):
        results = run(
            implementation,
            tensors,
            max_relative_position=distances,
            beyond=beyond,
            query_offset=offset,
            return_weights=return_weights,
            **options,
        )
        return joined(*results, is_valid)

    def define(tensors):
        outputs, weights, log_sums = dense(tensors, distances, offset, is_valid, beyond)
        return joined(outputs, weights if return_weights else None, log_sums, is_valid)

    width = DEPTH + 1 + (lengths[1] if return_weights else 0)
    cotangent = rng.normal(size=(*arrays["query"].shape[:3], width))
    found = output_and_gradients(compute, arrays, cotangent)
    assert_close(found, output_and_gradients(define, arrays, cotangent))


def test_fully_masked_queries(implementation, rng, precision):
    """Their log-sum-exp is minus infinity. Sinks then give no NaN, also not in gradients."""
    arrays = draw_arrays(rng, precision.dtype, (11, 11), (2, 2), sinks=(HEADS,))
    options = {"max_relative_position": 2, "key_mask": np.zeros((BATCH, 11), bool)}
    options["return_weights"] = False

    def compute(tensors):
        return run(implementation, tensors, **options)[0]

    *_, log_sums = run(implementation, arrays, **options)
    assert np.isneginf(ops.convert_to_numpy(log_sums)).all()
    outputs, gradients = output_and_gradients(compute, arrays)
    for x in (outputs, *gradients.values()):
        np.testing.assert_array_equal(x, 0)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="graphs of TensorFlow")
@pytest.mark.parametrize("distances", [SHORT, (40, 0)], ids=str)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_unknown_lengths_give_the_same_numbers(distances, jit_compile, rng, precision):
    import tensorflow as tf

    arguments = {"groups": GROUPS, "sinks": (HEADS,)}
    options = {"max_relative_position": distances, "beyond": "zero", "causal": True}
    options |= {"return_weights": False, "return_log_sums": True}

    def compute(tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            outputs, _, log_sums = attend(**tensors, **options)
            loss = tf.reduce_sum(outputs**2) + tf.reduce_sum(tf.cos(log_sums))
        return outputs, log_sums, tape.gradient(loss, tensors)

    drawn = draw_arrays(rng, precision.dtype, (5, 5), distances, **arguments)
    by_query = "query", "key", "value", "relative_query"
    spec = {
        n: tf.TensorSpec(
            (None, x.shape[1], None, x.shape[3]) if n in by_query else x.shape, x.dtype
        )
        for n, x in drawn.items()
    }
    run = tf.function(compute, input_signature=[spec], jit_compile=jit_compile)
    for length in (1, 31):
        arrays = draw_arrays(rng, precision.dtype, (length, length), distances, **arguments)
        tensors = {n: tf.constant(x) for n, x in arrays.items()}
        found, expected = keras.tree.flatten(run(tensors)), keras.tree.flatten(compute(tensors))
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x, y, atol=20 * precision.atol)


def test_dropout_comes_after_sinks(rng, precision):
    """Dropped weights are those of the keys: the rest of a query is scaled as without dropout."""
    arrays = draw_arrays(rng, precision.dtype, (9, 9), (2, 2), groups=GROUPS)
    arrays["value"], arrays["value_table"] = np.ones_like(arrays["value"]), None
    sinks, options = np.full(HEADS, 0.5, precision.dtype), {"return_log_sums": True}

    def dropped(**options):
        dropout = AttentionDropout(0.4, keras.random.SeedGenerator(1))
        return attend(**arrays, dropout=dropout, return_weights=False, **options)

    plain, _, log_sums = dropped(**options)
    plain, log_sums = map(ops.convert_to_numpy, (plain, log_sums))
    found = ops.convert_to_numpy(dropped(sinks=sinks)[0])
    factors = 1 / (1 + np.exp(0.5 - log_sums))
    assert (plain > 1.01).any() and (plain < 0.99).any()
    np.testing.assert_allclose(found, plain * factors[..., None], atol=10 * precision.atol)


@pytest.mark.parametrize("dtype, tolerance", [("float16", 5e-3), ("bfloat16", 4e-2)])
def test_16_bit_types(dtype, tolerance, implementation, rng):
    arrays = draw_arrays(rng, "float32", (23, 23), (17, 0), groups=GROUPS, sinks=(HEADS,))
    arrays = {n: ops.cast(x, dtype) for n, x in arrays.items()}
    options = {"max_relative_position": (17, 0), "causal": True, "beyond": "zero"}
    outputs, _, log_sums = run(implementation, arrays, return_weights=False, **options)
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    assert keras.backend.standardize_dtype(log_sums.dtype) == "float32"
    wide = {name: ops.cast(x, "float32") for name, x in arrays.items()}
    is_valid = valid_pairs((23, 23), 0, causal=True)
    expected, _, expected_sums = map(
        ops.convert_to_numpy, dense(wide, (17, 0), 0, is_valid, "zero")
    )
    outputs = ops.convert_to_numpy(ops.cast(outputs, "float32"))
    np.testing.assert_allclose(outputs, expected, atol=tolerance * np.abs(expected).max())
    np.testing.assert_allclose(ops.convert_to_numpy(log_sums), expected_sums, atol=10 * tolerance)


BAD = [
    ({"key_table": None, "value_table": None}, "`key_table` with `relative_query`"),
    ({"relative_query": np.ones((2, 4, 9, 6))}, r"`relative_query` of shape .*7\]. Received"),
    ({"relative_query": np.ones((2, 4, 8, 7))}, r"`relative_query` of shape .*\[2, 4, 9, 7\]"),
    ({"key": np.ones((2, 3, 9, 5)), "value": np.ones((2, 3, 9, 5))}, "N = 4 and G = 3"),
    ({"value": np.ones((2, 4, 9, 5))}, r"`value` of shape \[B, G, S, Hv\]"),
    ({"sinks": np.ones(3)}, "`sinks` of shape"),
    ({"sinks": np.ones((2, 4, 8))}, "`sinks` of shape"),
    ({"beyond": "zeros"}, "`beyond` to be 'clip' or 'zero'. Received: 'zeros'"),
    ({"beyond": "zero", "max_relative_position": 3}, "Expected tables with 7 rows"),
    ({"beyond": "zero", "relative_ids": np.zeros((9, 9), int)}, "without `relative_ids`"),
]


@pytest.mark.parametrize("changes, message", BAD, ids=str)
def test_bad_input(changes, message, rng):
    arrays = draw_arrays(rng, "float32", (9, 9), (2, 2), groups=GROUPS)
    changes = {
        n: x.astype("float32") if n in arrays and x is not None else x for n, x in changes.items()
    }
    with pytest.raises(ValueError, match=message):
        attend(**arrays | changes)


def test_explain_describes_the_new_arguments():
    options = {"backend": "torch", "device": "cpu", "causal": True}
    assert explain(4096, **options).chosen == "flash"
    assert explain(4096, grouped_queries=True, **options).chosen == "flash"
    assert explain(1024, grouped_queries=True, **options).saved_matrices == 1
    assert explain(4096, 4096, (1023, 0), beyond="zero", **options).chosen == "blocks"
    assert (
        "relative_query"
        in explain(
            1024, relative_query=True, backend="tensorflow", device="cpu", xla=False
        ).reasons["full_matrix"]
    )


def test_all_rows_of_the_table_say_what_they_require():
    call = AttentionCall(64, 64, 2, grouped_queries=True, has_relative_query=True)
    unmet = {row.name for row in dispatch.TABLE if row.match(call, ignore_preferences=True)[0]}
    assert {"rows", "by_id", "blocks"}.isdisjoint(unmet)
