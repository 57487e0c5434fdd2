"""Relative-position attention as tensor2tensor computes it, term by term.

Nothing here is optimized: every `[T, S, H]` tensor of the original is built. Tests compare these
functions with outputs and gradients recorded from tensor2tensor 1.15.7.

Shapes: B batch, T query length, S key length, N heads, H depth of a head,
K max_relative_position, R = 2K + 1 rows of a table.
"""

import keras
from keras import ops

from t2t_relpos import _checks
from t2t_relpos.backend import as_tensor, as_tensors


def relative_positions_matrix(length_q, length_k, max_relative_position, cache=False):
    """Returns the table row of every pair of a query and a key.

    The pair (i, j) gets `clip(j - i, -K, K) + K`. When the lengths differ, the
    queries are the last `length_q` positions of the keys. With `cache` there is
    one query, and it is at the last key.

    Args:
        length_q: T, an int or a scalar tensor. Unused with `cache`.
        length_k: S, an int or a scalar tensor.
        max_relative_position: clipping distance K, an int of at least 0.
        cache: whether there is one query, at the last key. Default: False.

    Returns:
        int32 tensor, `[T, S]`, or `[1, S]` with `cache`; entries in 0 … 2K.

    Raises:
        ValueError: if `max_relative_position` is not an int of at least 0, or
            if `length_q` is known to exceed `length_k`.

    Reference: Shaw et al. 2018, section 3.2; t2t `_generate_relative_positions_matrix`.

    Example:
    >>> import keras
    >>> from t2t_relpos.attention import reference
    >>> matrix = reference.relative_positions_matrix(3, 3, 1)
    >>> keras.ops.convert_to_numpy(matrix).tolist()
    [[1, 2, 2], [0, 1, 2], [0, 0, 1]]
    """
    _check_max_relative_position(max_relative_position, smallest=0)
    if cache:
        distances = ops.expand_dims(ops.arange(1 - length_k, 1, dtype="int32"), 0)
    else:
        if all(map(_checks.is_integer, (length_q, length_k))) and length_q > length_k:
            raise ValueError(
                "Expected at most as many queries as keys: the queries are the last positions of "
                f"the keys. Received: length_q={length_q}, length_k={length_k}."
            )
        positions_k = ops.arange(length_k, dtype="int32")
        positions_q = ops.arange(length_q, dtype="int32") + (length_k - length_q)
        distances = positions_k[None, :] - positions_q[:, None]
    clipped = ops.clip(distances, -max_relative_position, max_relative_position)
    return clipped + max_relative_position


def relative_position_embeddings(table, length_q, length_k, max_relative_position, cache=False):
    """Returns the table vector of every pair of a query and a key.

    Args:
        table: `[R, H]`, row K belongs to distance 0.
        length_q: T, an int or a scalar tensor. Unused with `cache`.
        length_k: S, an int or a scalar tensor.
        max_relative_position: K, an int of at least 0.
        cache: whether there is one query, at the last key. Default: False.

    Returns:
        Tensor `[T, S, H]`, or `[1, S, H]` with `cache`, of the table's dtype.

    Raises:
        ValueError: if the table does not have 2K + 1 rows, or as in `relative_positions_matrix`.

    Reference: Shaw et al. 2018, section 3.2; t2t `_generate_relative_positions_embeddings`.

    Example:
    >>> import keras
    >>> from t2t_relpos.attention import reference
    >>> table = keras.ops.convert_to_tensor([[1.0], [2.0], [3.0]])
    >>> embeddings = reference.relative_position_embeddings(table, 2, 2, 1)
    >>> keras.ops.convert_to_numpy(embeddings).tolist()
    [[[2.0], [3.0]], [[1.0], [2.0]]]
    """
    rows = relative_positions_matrix(length_q, length_k, max_relative_position, cache)
    _check_table("table", table, max_relative_position)
    return ops.take(table, rows, axis=0)


def relative_attention_inner(x, y, z, transpose):
    """Returns the product of attention with keys or values, plus the relative term.

    With `transpose`, x holds queries, y keys and z key embeddings, and the
    result is `x·yᵀ + x·zᵀ`. Without it, x holds weights, y values and z value
    embeddings, and the result is `x·y + x·z`. Query i is multiplied by `z[i]`.

    Args:
        x: `[B, N, T, H]` with `transpose`, otherwise `[B, N, T, S]`.
        y: `[B, N, S, H]`.
        z: `[T or 1, S, H]`.
        transpose: whether y and z are transposed in the products.

    Returns:
        Tensor `[B, N, T, S]` with `transpose`, otherwise `[B, N, T, H]`.

    Reference: Shaw et al. 2018, section 3.3; t2t `_relative_attention_inner`.

    Example:
    >>> import keras
    >>> from t2t_relpos.attention import reference
    >>> weights = keras.ops.convert_to_tensor([[[[0.25, 0.75]]]])
    >>> values = keras.ops.convert_to_tensor([[[[4.0], [8.0]]]])
    >>> embeddings = keras.ops.convert_to_tensor([[[100.0], [200.0]]])
    >>> output = reference.relative_attention_inner(weights, values, embeddings, False)
    >>> keras.ops.convert_to_numpy(output).tolist()
    [[[[182.0]]]]
    """
    x, y, z = as_tensors(x, y, z)
    batch, heads, length, depth = ops.shape(x)
    if transpose:
        y, z = ops.swapaxes(y, -1, -2), ops.swapaxes(z, -1, -2)
    by_position = ops.reshape(ops.transpose(x, (2, 0, 1, 3)), (length, batch * heads, depth))
    relative = ops.matmul(by_position, z)
    relative = ops.reshape(relative, (length, batch, heads, ops.shape(z)[-1]))
    return ops.matmul(x, y) + ops.transpose(relative, (1, 2, 0, 3))


def dot_product_attention_relative(
    q,
    k,
    v,
    bias,
    key_embeddings,
    value_embeddings,
    max_relative_position,
    dropout_rate=0.0,
    cache=False,
    allow_memory=False,
    seed=None,
):
    """Returns self-attention with relative positions in keys and values.

    Queries are not scaled: multiply them by `H ** -0.5`. All heads share the two tables. The tables
    are arguments, whereas tensor2tensor creates variables.

    Args:
        q: queries, `[B, N, T, H]`.
        k: keys, `[B, N, S, H]`.
        v: values, `[B, N, S, H]`.
        bias: None, or a tensor that broadcasts to `[B, N, T, S]`, added to the
            logits: 0 where a query may attend, -1e9 where it may not.
        key_embeddings: `[R, H]`, the table a^K of the paper.
        value_embeddings: `[R, H]`, the table a^V of the paper.
        max_relative_position: K, an int of at least 1.
        dropout_rate: probability of dropping a weight, in [0, 1), in training and in inference.
            Default: 0.0.
        cache: whether there is one query, at the last key. Default: False.
        allow_memory: whether k and v may be longer than q. The queries are then the last T
            positions of the keys. Default: False.
        seed: seed of the dropout, as in `keras.random.dropout`. Default: None.

    Returns:
        Tensor `[B, N, T, H]`.

    Raises:
        ValueError: if `max_relative_position` or `dropout_rate` is out of
            range, or if shapes do not match.

    Reference: Shaw et al. 2018, equations 3 and 4; t2t `dot_product_attention_relative`.

    Example:
    >>> import keras
    >>> from t2t_relpos.attention import reference
    >>> q = k = v = keras.ops.ones((1, 1, 2, 1))
    >>> keys = keras.ops.zeros((3, 1))
    >>> values = keras.ops.convert_to_tensor([[10.0], [20.0], [30.0]])
    >>> output = reference.dot_product_attention_relative(
    ...     q, k, v, None, keys, values, max_relative_position=1)
    >>> keras.ops.convert_to_numpy(output).ravel().tolist()
    [26.0, 16.0]
    """
    _check_max_relative_position(max_relative_position, smallest=1)
    _checks.rate(dropout_rate, "dropout_rate")
    q, k, v, *tables = as_tensors(q, k, v, key_embeddings, value_embeddings)
    _check_shapes(q, k, v, cache=cache, allow_memory=allow_memory)
    for name, table in zip(("key_embeddings", "value_embeddings"), tables):
        _check_table(name, table, max_relative_position, k.shape[-1])
    length_k = ops.shape(k)[2]
    length_q = ops.shape(q)[2] if allow_memory else length_k
    relation_keys, relation_values = (
        relative_position_embeddings(table, length_q, length_k, max_relative_position, cache)
        for table in tables
    )
    weights = _weights(q, k, bias, relation_keys)
    if dropout_rate > 0.0:
        weights = keras.random.dropout(weights, dropout_rate, seed=seed)
    return relative_attention_inner(weights, v, relation_values, False)


def _weights(q, k, bias, relation_keys):
    """Returns the weights `[B, N, T, S]` before dropout."""
    logits = relative_attention_inner(q, k, relation_keys, True)
    if bias is not None:
        logits = logits + ops.cast(as_tensor(bias), logits.dtype)
    return _softmax(logits)


def _softmax(logits):
    # keras.ops.softmax warns if there is one key, as in every first decoding step.
    largest = ops.stop_gradient(ops.max(logits, axis=-1, keepdims=True))
    exponentials = ops.exp(logits - largest)
    return exponentials / ops.sum(exponentials, axis=-1, keepdims=True)


def _check_max_relative_position(value, smallest):
    """Raises ValueError unless the clipping distance is an int of at least `smallest`."""
    if not _checks.is_integer(value) or value < smallest:
        raise ValueError(
            f"Expected max_relative_position to be an int of at least {smallest}: the largest "
            f"distance with a separate embedding. Received: max_relative_position={value!r}."
        )


def _check_table(name, table, max_relative_position, depth=None):
    sizes = {"R": 2 * max_relative_position + 1, "H": depth}
    advice = "R is 2 * max_relative_position + 1, and H the depth of the keys."
    _checks.check_shape(table.shape, name, "R H", sizes, advice=advice)


def _check_shapes(q, k, v, *, cache, allow_memory):
    """Raises ValueError if query, key and value have shapes that t2t does not allow."""
    sizes = _checks.check_shape(k.shape, "k", "B N S H")
    _checks.check_shape(v.shape, "v", "B N S H", sizes)
    axes, advice = (
        "B N S H",
        "Pass allow_memory=True if keys that precede the queries make k longer.",
    )
    if cache:
        axes, advice = "B N 1 H", "With cache=True, there is one query."
    elif allow_memory:
        axes, advice = "B N T H", ""
    _checks.check_shape(q.shape, "q", axes, sizes, advice=advice)
