"""Which row of a relative position table each (query, key) pair uses."""

from keras import ops


def key_positions(length_q, length_k, query_offset=None):
    """Key position of every query: `i + query_offset`.

    Without `query_offset` the queries are the *last* `length_q` positions of
    the keys (t2t's memory rule), that is `query_offset = length_k - length_q`.

    Args:
        length_q: number of queries T, an int or a scalar tensor.
        length_k: number of keys S, an int or a scalar tensor.
        query_offset: key position of query 0, an int, a scalar tensor or an
            int tensor `[B]` (a position for every row).

    Returns:
        int32 `[T]`, or `[B, T]` for a `query_offset` of shape `[B]`.

    Example:
    >>> from t2t_relpos.attention import key_positions
    >>> [int(p) for p in key_positions(2, 5)]
    [3, 4]
    """
    if query_offset is None:
        query_offset = length_k - length_q
    offset = ops.cast(query_offset, "int32")
    positions = ops.arange(length_q, dtype="int32")
    return ops.expand_dims(offset, -1) + positions if len(offset.shape) else offset + positions


def relative_labels(length_q, length_k, max_relative_position, query_offset=None):
    """Row of the table for every pair: `clip(j - i, -K, K) + K`.

    Here `i` is the query's key position (see `key_positions`) and `j` the
    key's. `max_relative_position` 0 gives one row for every pair.

    Args:
        length_q: number of queries T, an int or a scalar tensor.
        length_k: number of keys S, an int or a scalar tensor.
        max_relative_position: K, the distance from which on all are alike.
        query_offset: key position of query 0; default `S - T`.

    Returns:
        int32 `[T, S]`, or `[B, T, S]` for a `query_offset` of shape `[B]`,
        with values in `[0, 2K]`.

    Reference: Shaw et al. 2018, equation 5 (`w_clip(j - i, k)`);
    t2t `_generate_relative_positions_matrix`.

    Example:
    >>> from t2t_relpos.attention import relative_labels
    >>> ops.convert_to_numpy(relative_labels(3, 3, 1)).tolist()
    [[1, 2, 2], [0, 1, 2], [0, 0, 1]]
    """
    queries = key_positions(length_q, length_k, query_offset)
    keys = ops.arange(length_k, dtype="int32")
    distance = keys - ops.expand_dims(queries, -1)
    k = max_relative_position
    return ops.clip(distance, -k, k) + k


def position_labels(query_positions, key_positions, max_relative_position):
    """Row of the table for positions that are given: `clip(p_j - p_i, -K, K) + K`.

    Args:
        query_positions: int `[T]` or `[B, T]`.
        key_positions: int `[S]` or `[B, S]`.
        max_relative_position: K.

    Returns:
        int32 `[T, S]`, or `[B, T, S]` if either has a batch axis.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.attention import position_labels
    >>> ops.convert_to_numpy(position_labels(np.array([5]), np.array([3, 5, 9]), 2)).tolist()
    [[0, 2, 4]]
    """
    queries = ops.cast(query_positions, "int32")
    keys = ops.cast(key_positions, "int32")
    distance = ops.expand_dims(keys, -2) - ops.expand_dims(queries, -1)
    k = max_relative_position
    return ops.clip(distance, -k, k) + k
