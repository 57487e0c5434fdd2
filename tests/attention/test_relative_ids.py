import keras
import numpy as np
import pytest
from keras import ops

from t2t_relpos.attention import key_positions, relative_ids, relative_ids_from_positions
from t2t_relpos.attention.reference import relative_positions_matrix


@pytest.mark.parametrize("lengths", [(1, 1), (3, 3), (7, 7), (2, 5), (1, 11)])
@pytest.mark.parametrize("k", [0, 1, 2, 13])
def test_relative_ids_equal_the_port(lengths, k):
    expected = relative_positions_matrix(*lengths, k)
    np.testing.assert_array_equal(relative_ids(*lengths, k), expected)


def test_query_offset_is_the_position_of_the_first_query():
    np.testing.assert_array_equal(relative_ids(2, 3, 2, query_offset=0), [[2, 3, 4], [1, 2, 3]])


def test_query_offset_per_batch_entry():
    offsets = np.array([0, 3, 1], "int32")
    ids = ops.convert_to_numpy(relative_ids(2, 5, 2, query_offset=offsets))
    assert ids.shape == (3, 2, 5)
    for entry, offset in enumerate(offsets):
        np.testing.assert_array_equal(ids[entry], relative_ids(2, 5, 2, int(offset)))
    np.testing.assert_array_equal(key_positions(2, 5, offsets), [[0, 1], [3, 4], [1, 2]])


def test_relative_ids_from_positions():
    queries, keys = np.array([7, 3]), np.array([0, 3, 4, 9])
    np.testing.assert_array_equal(
        relative_ids_from_positions(queries, keys, 2), [[0, 0, 0, 4], [0, 2, 3, 4]]
    )
    batch = relative_ids_from_positions(np.stack([queries, queries + 1]), keys, 2)
    np.testing.assert_array_equal(batch[0], relative_ids_from_positions(queries, keys, 2))
    np.testing.assert_array_equal(batch[1], relative_ids_from_positions(queries + 1, keys, 2))


@pytest.mark.parametrize("k", [0, 4, 1_000_000])
def test_relative_ids_of_positions_at_any_distance(k):
    """Distances of up to 2**32 - 2 do not fit into int32."""
    queries = np.array([1 - 2**31, -2_000_000_000, -3, 0, 2_000_000_000, 2**31 - 1])
    keys = np.array([1 - 2**31, 2 - 2**31, -2, 3, 1_999_999_998, 2**31 - 1])
    expected = np.clip(keys - queries[:, None], -k, k) + k
    np.testing.assert_array_equal(relative_ids_from_positions(queries, keys, k), expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32", "uint64", "int64"])
def test_positions_may_have_any_integer_dtype(dtype):
    if dtype == "uint64" and keras.backend.backend() == "torch":
        pytest.skip("Keras does not support uint64 on PyTorch")
    queries, keys = np.array([9, 3], dtype), np.array([8, 100], dtype)
    ids = relative_ids_from_positions(queries, keys, 2)
    np.testing.assert_array_equal(ids, [[1, 4], [4, 4]])
    np.testing.assert_array_equal(key_positions(2, 5, queries), [[9, 10], [3, 4]])


@pytest.mark.parametrize(
    "positions, message",
    [
        ([5, 2**31], r"`key_positions` in \[-2147483647, 2147483648\). Received: values from 5"),
        ([0.5], "Expected `key_positions` of an integer dtype"),
    ],
)
def test_known_positions_must_fit_into_int32(positions, message):
    with pytest.raises(ValueError, match=message):
        relative_ids_from_positions(np.array([0]), np.array(positions), 2)
    with pytest.raises(ValueError, match="Expected `query_offset`"):
        key_positions(3, 3, positions)


def test_positions_of_queries_end_at_the_largest_int32():
    for offset in (2**31 - 2, np.array(2**31 - 2)):
        found = ops.convert_to_numpy(key_positions(3, 3, offset))
        np.testing.assert_array_equal(found, [2**31 - 2, 2**31 - 1, 2**31 - 1])
