"""Compares the contract of attention algorithms with dense attention.

Tables and their queries are outside of the algorithms: test_implementations.py has their cases.
"""

import numpy as np
import pytest
from gradients import output_and_gradients
from keras import ops

from t2t_relpos.attention import dispatch, relative_ids
from t2t_relpos.attention.attend import AttentionCall
from t2t_relpos.attention.band import Distances
from t2t_relpos.backend import MASKED_SCORE

BATCH, HEADS, DEPTH, TABLE_DEPTH = 2, 3, 5, 7
NAMES = [row.name for row in dispatch.TABLE if not row.reads_tables]
NAMES = [*NAMES, "rows", "unrolled_blocks", "scanned_blocks", "flash without a kernel"]
for name in ("scaled_dot_product_attention", "without_tables"):
    NAMES.remove(name)


@pytest.fixture(params=NAMES)
def implementation(request, small_block_implementations):
    return small_block_implementations[request.param]


def attend(implementation, lengths, distances, **options):
    """Returns the `Results` of a call. Skips the test if the implementation does not support it."""
    call = AttentionCall.from_arguments(*lengths, distances, needs_log_sums=True, **options)
    unmet, _ = implementation.match(call, ignore_preferences=True)
    if unmet is not None:
        pytest.skip(f"{implementation.name} requires {unmet.text}")
    return implementation.attend(call)


def draw_arrays(rng, dtype, length_q, length_k, distances, heads=None):
    """Returns the tensors of a call by name. The key table has queries of its own."""
    lead = () if heads is None else (heads,)
    num_ids = Distances.of(distances).num_ids
    shapes = {
        "query": (BATCH, HEADS, length_q, DEPTH),
        "key": (BATCH, HEADS, length_k, DEPTH),
        "value": (BATCH, HEADS, length_k, DEPTH),
        "relative_query": (BATCH, HEADS, length_q, TABLE_DEPTH),
        "key_table": (*lead, num_ids, TABLE_DEPTH),
        "value_table": (*lead, num_ids, DEPTH),
    }
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


def outputs_and_log_sums(outputs, log_sums, is_valid):
    """Returns `[B, N, T, Hv + 1]`, without the log-sum-exp of fully masked queries."""
    has_key = is_valid.any(-1, keepdims=True)
    return ops.concatenate([outputs, ops.where(has_key, log_sums, 0)], axis=-1)


def dense(tensors, distances, offset, is_valid):
    """Returns the results of `outputs_and_log_sums`, from the table rows of all pairs."""
    ids = relative_ids(*is_valid.shape[2:], distances, offset)
    tables = (tensors[name] for name in ("key_table", "value_table"))
    key_vectors, value_vectors = (ops.take(table, ids, axis=-2) for table in tables)
    scores = ops.matmul(tensors["query"], ops.swapaxes(tensors["key"], -1, -2))
    relative_query = ops.expand_dims(tensors["relative_query"], 3)
    scores = scores + ops.sum(relative_query * key_vectors, axis=-1)
    scores = ops.where(is_valid, scores, -1e9)
    log_sums = ops.logsumexp(scores, axis=-1, keepdims=True)
    weights = ops.where(is_valid, ops.exp(scores - log_sums), 0.0)
    values = ops.expand_dims(tensors["value"], 2) + value_vectors
    outputs = ops.sum(ops.expand_dims(weights, -1) * values, axis=3)
    return outputs_and_log_sums(outputs, log_sums, is_valid)


# R is less than H, and more than 2 * H.
@pytest.mark.parametrize("distances", [(2, 1), (17, 5), (0, 3)], ids=str)
@pytest.mark.parametrize(
    "case",
    [
        {"lengths": (23, 23)},
        {"lengths": (23, 23), "causal": True, "heads": HEADS},
        {"lengths": (19, 26), "query_offset": 3, "masks": True},
        {"lengths": (23, 23), "masks": True, "causal": True},
    ],
    ids=str,
)
def test_queries_of_the_key_table_and_log_sums(
    case, distances, implementation, rng, precision, assert_close
):
    case = dict(case)
    lengths, heads, masks = case.pop("lengths"), case.pop("heads", None), case.pop("masks", False)
    arrays = draw_arrays(rng, precision.dtype, *lengths, distances, heads)
    offset, causal = case.get("query_offset", lengths[1] - lengths[0]), case.get("causal", False)
    is_valid = np.ones((BATCH, 1, *lengths), bool)
    if causal:
        is_valid &= np.arange(lengths[1]) <= np.arange(lengths[0])[:, None] + offset
    if masks:
        case["key_mask"] = rng.random((BATCH, lengths[1])) < 0.7
        case["key_mask"][0] = False  # all queries of a sequence are fully masked
        is_valid &= case["key_mask"][:, None, None]

    def compute(tensors):
        results = attend(implementation, lengths, distances, **case, **tensors)
        return outputs_and_log_sums(results.outputs, results.log_sums, is_valid)

    cotangent = rng.normal(size=(*arrays["query"].shape[:3], DEPTH + 1))
    found = output_and_gradients(compute, arrays, cotangent)
    expected = output_and_gradients(
        lambda xs: dense(xs, distances, offset, is_valid), arrays, cotangent
    )
    assert_close(found, expected)


def test_fully_masked_queries(implementation, rng, precision):
    """Their weights by id are 0 and their log-sum-exp is the lowest. Sinks then give no NaN."""
    arrays = draw_arrays(rng, precision.dtype, 11, 11, 2)

    def compute(tensors):
        mask = np.zeros((BATCH, 11), bool)
        results = attend(implementation, (11, 11), 2, key_mask=mask, **tensors)
        outputs, _, log_sums, _ = results
        is_lowest = ops.cast(log_sums == MASKED_SCORE, log_sums.dtype)
        return outputs * ops.sigmoid(log_sums - 0.5) + 1 - is_lowest

    outputs, gradients = output_and_gradients(compute, arrays)
    for x in (outputs, *gradients.values()):
        np.testing.assert_array_equal(x, 0)
