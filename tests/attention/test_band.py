import numpy as np
import pytest
from keras import ops

from t2t_relpos.attention import relative_ids
from t2t_relpos.attention.band import expand_ids, sum_by_id

# (T, S, K, query_offset). The cases include no band, keys on one side only, and one query.
CASES = [
    (1, 1, 2, 0),
    (3, 3, 5, 0),
    (7, 7, 3, 0),
    (23, 23, 3, 0),
    (5, 11, 2, 6),
    (5, 11, 2, 0),
    (1, 13, 3, 12),
    (1, 13, 3, 4),
    (11, 5, 2, 0),
    (3, 5, 1, 17),
    (3, 5, 1, -17),
    (11, 11, 0, 0),
]


@pytest.mark.parametrize("case", CASES)
def test_expand_ids_looks_up_entries_by_relative_id(case, rng, precision):
    length_q, length_k, k, offset = case
    rows = rng.normal(size=(2, 3, length_q, 2 * k + 1)).astype(precision.dtype)
    ids = ops.convert_to_numpy(relative_ids(length_q, length_k, k, offset))
    expected = np.take_along_axis(rows, ids[None, None], axis=-1)
    np.testing.assert_array_equal(expand_ids(rows, length_k, offset), expected)


@pytest.mark.parametrize("case", CASES)
def test_sum_by_id_sums_weights_by_relative_id(case, rng, precision):
    length_q, length_k, k, offset = case
    weights = rng.normal(size=(2, 3, length_q, length_k)).astype(precision.dtype)
    ids = ops.convert_to_numpy(relative_ids(length_q, length_k, k, offset))
    one_hot = np.eye(2 * k + 1)[ids]
    expected = np.einsum("bnts,tsr->bntr", weights, one_hot)
    np.testing.assert_allclose(sum_by_id(weights, 2 * k + 1, offset), expected, atol=precision.atol)
