"""Positions, and relative ids: the table row of each query and key.

Positions are int32. Differences of two positions may not fit into int32. Positions are therefore
compared with the ends of a range around the query, and never subtracted from each other.
"""

import keras

from t2t_relpos import _checks
from t2t_relpos.attention.band import Distances
from t2t_relpos.backend import arange, ops


def key_positions(length_q, length_k, query_offset=None):
    """Returns the key position of every query, `i + query_offset`.

    Args:
        length_q: number of queries T, an int or a scalar tensor.
        length_k: number of keys S, an int or a scalar tensor.
        query_offset: key position of query 0: an int, a scalar tensor, or an int tensor `[B]` (one
            position per batch entry). Default: `S - T`, the queries are the last T positions of the
            keys (tensor2tensor's memory rule).

    Returns:
        int32 `[T]`, or `[B, T]` for a `query_offset` of shape `[B]`.

    Example:
    >>> from t2t_relpos.attention import key_positions
    >>> [int(p) for p in key_positions(2, 5)]
    [3, 4]
    """
    _checks.query_offset(query_offset)
    if query_offset is None:
        query_offset = length_k - length_q
    positions = arange(length_q)
    if _fit_int32(length_q, length_k, query_offset):
        return positions + query_offset if query_offset else positions
    if not (hasattr(query_offset, "shape") or _checks.is_integer(query_offset)):
        return ops.cast(query_offset, "int32") + positions  # a symbolic length of JAX or PyTorch
    offset = as_positions(query_offset, "query_offset")
    if len(offset.shape):
        offset = ops.expand_dims(offset, -1)
    # A sum that does not fit into int32 would be negative.
    return ops.minimum(offset, _checks.LARGEST_POSITION - positions) + positions


def _fit_int32(*sizes):
    """Returns whether sizes and offsets are ints whose sums and differences fit into int32."""
    return all(type(size) is int and abs(size) <= _checks.LARGEST_POSITION // 4 for size in sizes)


def as_positions(values, name):
    """Returns positions or an offset as int32. Unknown values are limited to the range of int32.

    Args:
        values: an int, or integers in an array, a tensor or a variable.
        name: name of the argument, for the error.

    Raises:
        ValueError: if the values are not integers, or are known and do not fit into int32.
    """
    values = _checks.as_array(values)
    _checks.integers(values, f"`{name}`")
    dtype = keras.backend.standardize_dtype(values.dtype)
    if dtype in ("int64", "uint32", "uint64"):
        _checks.fits_int32(values, name)
        lowest = 0 if dtype.startswith("u") else -_checks.LARGEST_POSITION
        values = ops.clip(values, lowest, _checks.LARGEST_POSITION)
    return ops.cast(values, "int32")


def range_around(positions, left, right):
    """Returns (lowest, highest) positions within two distances of `positions`, as int32.

    Args:
        positions: int32.
        left: largest distance to the left, an int or, while PyTorch traces a model, a tensor.
        right: largest distance to the right.
    """
    largest = _checks.LARGEST_POSITION
    left, right = (x if ops.is_tensor(x) else min(x, largest) for x in (left, right))
    lowest = ops.maximum(positions, left - largest) - left
    return lowest, ops.minimum(positions, largest - right) + right


def relative_ids(length_q, length_k, max_relative_position, query_offset=None):
    """Returns the table row of every pair: `clip(j - i, -left, right) + left`.

    `i` is the key position of the query (see `key_positions`) and `j` the position of the key.

    Args:
        length_q: number of queries T, an int or a scalar tensor.
        length_k: number of keys S, an int or a scalar tensor.
        max_relative_position: clipping distance K, or a pair (left, right) of them. With 0, all
            pairs share one row.
        query_offset: key position of query 0. Default: `S - T`.

    Returns:
        int32 `[T, S]`, or `[B, T, S]` for a `query_offset` of shape `[B]`, in `[0, left + right]`.

    Reference: Shaw et al. 2018, section 3.2; t2t `_generate_relative_positions_matrix`.

    Example:
    >>> from keras import ops
    >>> from t2t_relpos.attention import relative_ids
    >>> ops.convert_to_numpy(relative_ids(3, 3, 1)).tolist()
    [[1, 2, 2], [0, 1, 2], [0, 0, 1]]
    >>> ops.convert_to_numpy(relative_ids(3, 3, (2, 0))).tolist()
    [[2, 2, 2], [1, 2, 2], [0, 1, 2]]
    """
    if query_offset is None:
        query_offset = length_k - length_q
    queries = key_positions(length_q, length_k, query_offset)
    keys = arange(length_k)
    distances = _distances(max_relative_position)
    if _fit_int32(length_q, length_k, query_offset):
        ids = keys + distances.left - ops.expand_dims(queries, -1)
        return ops.clip(ids, 0, distances.left + distances.right)
    return relative_ids_from_positions(queries, keys, distances)


def _distances(max_relative_position):
    """Returns the checked `Distances`. Those of a call are not checked again."""
    if isinstance(max_relative_position, Distances):
        return max_relative_position
    return Distances.of(_checks.max_relative_position(max_relative_position))


def relative_ids_from_positions(query_positions, key_positions, max_relative_position):
    """Returns the table row of every pair of positions: `clip(p_j - p_i, -left, right) + left`.

    Args:
        query_positions: int `[T]` or `[B, T]`.
        key_positions: int `[S]` or `[B, S]`.
        max_relative_position: clipping distance K, or a pair (left, right) of them.

    Returns:
        int32 `[T, S]`, or `[B, T, S]` if either argument has a batch axis.

    Raises:
        ValueError: if positions are not integers, or are known and do not fit into int32.

    Example:
    >>> import numpy as np
    >>> from keras import ops
    >>> from t2t_relpos.attention import relative_ids_from_positions
    >>> ids = relative_ids_from_positions(np.array([5]), np.array([3, 5, 9]), 2)
    >>> ops.convert_to_numpy(ids).tolist()
    [[0, 2, 4]]
    """
    queries = ops.expand_dims(as_positions(query_positions, "query_positions"), -1)
    keys = ops.expand_dims(as_positions(key_positions, "key_positions"), -2)
    distances = _distances(max_relative_position)
    lowest, highest = range_around(queries, *distances)
    return ops.minimum(ops.maximum(keys, lowest), highest) - (queries - distances.left)
