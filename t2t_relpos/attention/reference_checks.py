"""Argument checks of `reference`."""

from numbers import Integral


def check_max_relative_position(value, minimum):
    """Raises ValueError unless the clipping distance is an int of at least `minimum`."""
    is_int = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_int or value < minimum:
        raise ValueError(
            f"Expected max_relative_position to be an int of at least {minimum}: the "
            "largest distance with a separate embedding. "
            f"Received: max_relative_position={value!r}."
        )


def check_query_length(length_q, length_k):
    """Raises ValueError if there are more queries than keys."""
    static = isinstance(length_q, Integral) and isinstance(length_k, Integral)
    if static and length_q > length_k:
        raise ValueError(
            "Expected at most as many queries as keys: the queries are the last "
            f"positions of the keys. Received: length_q={length_q}, "
            f"length_k={length_k}."
        )


def check_table(name, table, max_relative_position, depth=None):
    """Raises ValueError if a table has the wrong shape."""
    expected = (2 * max_relative_position + 1, depth)
    if not _compatible(table.shape, expected):
        raise ValueError(
            f"Expected {name} to have 2 * max_relative_position + 1 = {expected[0]} "
            f"rows{'' if depth is None else f' of length {depth}, the depth of the keys'}. "
            f"Received: shape {tuple(table.shape)} with "
            f"max_relative_position={max_relative_position}."
        )


def check_attention_shapes(q, k, v, cache, allow_memory):
    """Raises ValueError if query, key and value have shapes that t2t does not allow."""
    received = f"Received: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}."
    if not all(len(x.shape) == 4 for x in (q, k, v)):
        raise ValueError("Expected q, k and v of shape [batch, heads, length, depth]. " + received)
    if not _compatible(k.shape, v.shape):
        raise ValueError("Expected k and v of the same shape. " + received)
    if cache and not _compatible(q.shape[2:3], (1,)):
        raise ValueError("Expected one query (length 1) with cache=True. " + received)
    expected = list(k.shape)
    if cache or allow_memory:
        expected[2] = None
    if not _compatible(q.shape, expected):
        raise ValueError(
            "Expected q, k and v of the same shape: this is self-attention. Pass "
            "allow_memory=True if keys that precede the queries make k and v longer. " + received
        )


def _compatible(shape, other):
    return len(shape) == len(other) and all(
        a is None or b is None or a == b for a, b in zip(shape, other)
    )
