"""Filters that restrict the ids of sampling, and the draw. Functions of logits `[rows, V]`.

Masks, bool `[rows, V]` or `[1, V]`, say which ids are allowed. At least one id of each row is
allowed.
"""

from keras import ops

from t2t_relpos import _checks
from t2t_relpos._backend import as_size
from t2t_relpos.decoding.constraints import EXCLUDED_BELOW, MASKED
from t2t_relpos.decoding.top_k import top_k

# Below the first temperature, only the most likely ids have a probability above 0 in float32. Above
# the second, all have the same.
_LOWEST_TEMPERATURE, _HIGHEST_TEMPERATURE = 1e-30, 1e30


def keep_top_k(logits, allowed, k):
    """Keeps the k most likely allowed ids. Of equally likely ids, smaller ones are kept.

    Args:
        logits: `[rows, V]`.
        allowed: mask of ids.
        k: at least 1, an int or a scalar tensor.

    Returns:
        A mask `[rows, V]`.

    Example:
    >>> from keras import ops
    >>> from t2t_relpos.decoding.filters import keep_top_k
    >>> logits, allowed = ops.convert_to_tensor([[1.0, 3.0, 1.0, 2.0]]), [[True, True, True, False]]
    >>> ops.convert_to_numpy(keep_top_k(logits, allowed, 2)).tolist()
    [[True, True, False, False]]
    """
    logits = _masked(logits, allowed)
    size = logits.shape[-1]
    k = min(int(k), size) if _checks.is_integer(k) else ops.minimum(as_size(k), size)
    values, indices = top_k(logits, k)
    # Not `[:, -1:]`, whose size TensorFlow does not know if k is a tensor.
    return _down_to(logits, allowed, values[:, -1, None], indices[:, -1, None])


def keep_top_p(logits, allowed, p):
    """Keeps the nucleus: the fewest most likely ids whose probabilities sum to at least `p`.

    At least one id is kept. Of equally likely ids, smaller ones are kept. Probabilities are the
    softmax of the logits of allowed ids.

    Reference: Holtzman et al. 2020, section 3.1.

    Args:
        logits: `[rows, V]`.
        allowed: mask of ids.
        p: above 0 and at most 1, a float or a scalar tensor.

    Returns:
        A mask `[rows, V]`.

    Example:
    >>> from keras import ops
    >>> from t2t_relpos.decoding.filters import keep_top_p
    >>> logits = ops.log(ops.convert_to_tensor([[0.25, 0.5, 0.125, 0.125]]))
    >>> ops.convert_to_numpy(keep_top_p(logits, [[True] * 4], 0.75)).tolist()
    [[True, True, False, False]]
    """
    logits = _masked(logits, allowed)
    values, indices = top_k(logits, logits.shape[-1])
    probabilities = ops.softmax(values, axis=-1)
    before = ops.cumsum(probabilities, axis=-1) - probabilities
    kept = ops.sum(ops.cast(before < p, "int32"), axis=-1, keepdims=True)
    last = ops.maximum(kept - 1, 0)
    value, index = (ops.take_along_axis(x, last, axis=-1) for x in (values, indices))
    return _down_to(logits, allowed, value, index)


def _masked(logits, allowed):
    return ops.where(allowed, logits, MASKED)


def _down_to(logits, allowed, value, index):
    """Keeps allowed ids with a logit above `value`, or equal to it and an id of at most `index`."""
    ids = ops.arange(logits.shape[-1], dtype="int32")
    is_tie = ops.logical_and(logits == value, ids <= index)
    return ops.logical_and(allowed, ops.logical_or(logits > value, is_tie))


def divide(log_probs, allowed, temperature):
    """Returns log-probabilities divided by a temperature, less the largest of allowed ids.

    Args:
        log_probs: `[rows, V]`.
        allowed: mask of ids.
        temperature: above 0, also infinite; a float or a scalar tensor.
    """
    if not ops.is_tensor(temperature):
        temperature = min(max(temperature, _LOWEST_TEMPERATURE), _HIGHEST_TEMPERATURE)
    temperature = ops.cast(temperature, "float32")
    temperature = ops.clip(temperature, _LOWEST_TEMPERATURE, _HIGHEST_TEMPERATURE)
    largest = ops.max(_masked(log_probs, allowed), axis=-1, keepdims=True)
    # Smaller differences would overflow at low temperatures.
    return ops.maximum(log_probs - largest, EXCLUDED_BELOW) / temperature


def draw(logits, allowed, uniform):
    """Draws an allowed id for each row from the softmax of logits.

    Args:
        logits: `[rows, V]`.
        allowed: mask of ids.
        uniform: `[rows]`, random numbers in [0, 1).

    Returns:
        int32 `[rows]`: the first id whose cumulative probability exceeds the random number.
    """
    uniform = ops.convert_to_tensor(uniform)
    probabilities = ops.softmax(_masked(logits, allowed), axis=-1)
    possible = ops.logical_and(allowed, probabilities > 0)
    # Because of rounding, the total may differ from 1. The random number is scaled below it.
    sums = ops.where(possible, ops.cumsum(probabilities, axis=-1), 0.0)
    total = ops.max(sums, axis=-1, keepdims=True) * (1 - 2.0**-22)
    return ops.cast(ops.argmax(sums > uniform[:, None] * total, axis=-1), "int32")
