"""Which ids sampling may draw: pure functions of logits `[rows, V]`.

Excluded ids get -inf. Logits are log-probabilities up to a constant of each row.
"""

from keras import ops

from t2t_relpos.decoding.top_k import top_k


def keep_top_k(logits, k):
    """The k most likely ids, earlier ids first among equals; all if there are fewer.

    Args:
        logits: `[rows, V]`.
        k: at least 1, an int or a scalar tensor.

    Example:
    >>> from keras import ops
    >>> from t2t_relpos.decoding.filters import keep_top_k
    >>> ops.convert_to_numpy(keep_top_k(ops.convert_to_tensor([[1.0, 3.0, 1.0]]), 2)).tolist()
    [[1.0, 3.0, -inf]]
    """
    size = logits.shape[-1]
    k = min(k, size) if isinstance(k, int) else ops.minimum(k, size)
    values, indices = top_k(logits, k)
    return _keep_down_to(logits, values[:, -1:], indices[:, -1:])


def keep_top_p(logits, p):
    """The nucleus: the fewest of the most likely ids whose probability together is at least `p`.

    At least one; earlier ids come first among equals (Holtzman et al. 2020,
    section 3.1). Probabilities are the softmax of `logits`, so after
    `keep_top_k` those among the k.

    Args:
        logits: `[rows, V]`.
        p: above 0 and at most 1, a float or a scalar tensor.

    Example:
    >>> from keras import ops
    >>> from t2t_relpos.decoding.filters import keep_top_p
    >>> logits = ops.log(ops.convert_to_tensor([[0.25, 0.5, 0.125, 0.125]]))
    >>> (ops.convert_to_numpy(keep_top_p(logits, 0.75)) > -1e6).tolist()
    [[True, True, False, False]]
    """
    values, indices = top_k(logits, logits.shape[-1])
    probabilities = ops.softmax(values, axis=-1)
    before = ops.cumsum(probabilities, axis=-1) - probabilities
    kept = ops.sum(ops.cast(before < p, "int32"), axis=-1, keepdims=True)
    last = ops.maximum(kept - 1, 0)
    value, index = (ops.take_along_axis(x, last, axis=-1) for x in (values, indices))
    return _keep_down_to(logits, value, index)


def _keep_down_to(logits, value, index):
    """Returns which ids are likelier than id `index`, that id, and equally likely earlier ids."""
    ids = ops.arange(logits.shape[-1], dtype="int32")
    as_likely = ops.logical_and(logits == value, ids <= index)
    return ops.where(ops.logical_or(logits > value, as_likely), logits, float("-inf"))


def draw(logits, uniform):
    """An id of every row, as likely as the softmax of `logits` says.

    Args:
        logits: `[rows, V]`; -inf for ids that are left out.
        uniform: `[rows]`, random numbers in [0, 1).

    Returns:
        int32 `[rows]`: the first id at which the sum of probabilities exceeds
        the random number.
    """
    probabilities = ops.softmax(logits, axis=-1)
    possible = probabilities > 0
    # Sums may be rounded: the total is the last partial sum, and the draw stays below it.
    sums = ops.where(possible, ops.cumsum(probabilities, axis=-1), 0.0)
    whole = ops.max(sums, axis=-1, keepdims=True) * (1 - 2.0**-22)
    return ops.cast(ops.argmax(sums > uniform[:, None] * whole, axis=-1), "int32")
