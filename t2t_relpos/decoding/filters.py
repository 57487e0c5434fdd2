"""Filters that restrict the ids of sampling: pure functions of logits `[rows, V]`.

The logits of excluded ids become -inf.
"""

from keras import ops

from t2t_relpos.decoding.top_k import top_k


def keep_top_k(logits, k):
    """Keeps the k most likely ids. Of equally likely ids, smaller ones are kept.

    Args:
        logits: `[rows, V]`.
        k: at least 1, an int or a scalar tensor.

    Example:
    >>> from keras import ops
    >>> from t2t_relpos.decoding.filters import keep_top_k
    >>> ops.convert_to_numpy(keep_top_k(ops.convert_to_tensor([[1.0, 3.0, 1.0]]), 2)).tolist()
    [[1.0, 3.0, -inf]]
    """
    logits = ops.convert_to_tensor(logits)
    size = logits.shape[-1]
    k = min(k, size) if isinstance(k, int) else ops.minimum(k, size)
    values, indices = top_k(logits, k)
    return _keep_down_to(logits, values[:, -1:], indices[:, -1:])


def keep_top_p(logits, p):
    """Keeps the nucleus: the fewest most likely ids whose probabilities sum to at least `p`.

    At least one id is kept. Of equally likely ids, smaller ones are kept. Probabilities are the
    softmax of `logits`, so filters can be combined.

    Reference: Holtzman et al. 2020, section 3.1.

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
    logits = ops.convert_to_tensor(logits)
    values, indices = top_k(logits, logits.shape[-1])
    probabilities = ops.softmax(values, axis=-1)
    before = ops.cumsum(probabilities, axis=-1) - probabilities
    kept = ops.sum(ops.cast(before < p, "int32"), axis=-1, keepdims=True)
    last = ops.maximum(kept - 1, 0)
    value, index = (ops.take_along_axis(x, last, axis=-1) for x in (values, indices))
    return _keep_down_to(logits, value, index)


def _keep_down_to(logits, value, index):
    """Keeps ids whose logit is above `value`, and ids up to `index` whose logit equals it."""
    ids = ops.arange(logits.shape[-1], dtype="int32")
    is_tie = ops.logical_and(logits == value, ids <= index)
    return ops.where(ops.logical_or(logits > value, is_tie), logits, float("-inf"))


def draw(logits, uniform):
    """Draws an id for each row from the softmax of `logits`.

    Args:
        logits: `[rows, V]`; -inf for excluded ids.
        uniform: `[rows]`, random numbers in [0, 1).

    Returns:
        int32 `[rows]`: the first id whose cumulative probability exceeds the random number.
    """
    uniform = ops.convert_to_tensor(uniform)
    probabilities = ops.softmax(logits, axis=-1)
    possible = probabilities > 0
    # Because of rounding, the total may differ from 1. The random number is scaled below it.
    sums = ops.where(possible, ops.cumsum(probabilities, axis=-1), 0.0)
    total = ops.max(sums, axis=-1, keepdims=True) * (1 - 2.0**-22)
    return ops.cast(ops.argmax(sums > uniform[:, None] * total, axis=-1), "int32")
