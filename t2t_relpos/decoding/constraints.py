"""Constraints on outputs: pure functions of log-probabilities and previous ids.

Each function takes `log_probs` `[rows, V]` and returns log-probabilities that are not normalized
again. The scores of allowed ids do not change, as in Hugging Face's beam search. CTranslate2
constrains logits before the softmax instead. Its allowed ids gain the probability of forbidden
ones, its penalty divides positive logits, and forced ids don't lower the score.

`ids` are the previous ids, int `[rows, L]`. `i` is their number, and `ids[:, i:]` is padding.
"""

from typing import NamedTuple

from keras import ops

from t2t_relpos import _checks

# Below every score, as in t2t. It is finite because infinity times 0 is NaN.
NEVER = -1e7
# For ids that are never allowed. If no id is allowed, an early end of sentence is preferred.
FORBIDDEN = 2 * NEVER


class Constraints(NamedTuple):
    """Constraints of a search. The defaults disable all constraints and add no operations.

    Attributes:
        min_length: smallest number of ids before the end of sentence, an int or
            a scalar tensor.
        prefix: int `[rows, P]`, forced first ids, padded at the end; or None.
            The score includes their log-probabilities. The other constraints
            only apply to later ids.
        no_repeat_ngram_size: n; no sequence of n ids occurs twice in an output. An
            int, 0 for no constraint.
        repetition_penalty: factor for the log-probabilities of previous ids
            (Keskar et al. 2019 as in Hugging Face's beam search); a float or a
            scalar tensor, 1 for none.
    """

    min_length: object = 0
    prefix: object = None
    no_repeat_ngram_size: int = 0
    repetition_penalty: object = 1.0

    @property
    def any(self):
        """Whether there is a constraint."""
        return self.prefix is not None or any(
            _is_enabled(getattr(self, name), disabled) for name, disabled in _DISABLED.items()
        )


_DISABLED = {"min_length": 0, "no_repeat_ngram_size": 0, "repetition_penalty": 1}


def _is_enabled(value, disabled):
    return ops.is_tensor(value) or value != disabled


def checked_constraints(min_length, prefix, no_repeat_ngram_size, repetition_penalty):
    """Returns `Constraints` after checking the arguments, except for values of tensors.

    Raises:
        ValueError: if a length or size is not an int of at least 0, the penalty is not above 0, or
            the prefix is not `[B, P]`.
    """
    if not ops.is_tensor(min_length):
        if not _is_count(min_length):
            raise ValueError(
                "Expected `min_length` to be an int of at least 0 or a scalar tensor. "
                f"Received: {min_length!r}"
            )
        min_length = int(min_length)
    if not _is_count(no_repeat_ngram_size):
        raise ValueError(
            "Expected `no_repeat_ngram_size` to be an int of at least 0 (0: any may repeat). "
            f"Received: {no_repeat_ngram_size!r}"
        )
    if not ops.is_tensor(repetition_penalty) and not repetition_penalty > 0:
        raise ValueError(
            "Expected `repetition_penalty` above 0 (1: none, more: fewer repetitions). "
            f"Received: {repetition_penalty!r}"
        )
    size = int(no_repeat_ngram_size)
    return Constraints(min_length, _checked_prefix(prefix), size, repetition_penalty)


def _checked_prefix(prefix):
    """Returns a prefix as an int32 tensor, or None for None."""
    if prefix is None:
        return None
    prefix = ops.cast(prefix, "int32")
    if len(prefix.shape) != 2:
        raise ValueError(
            "Expected `prefix` of shape [batch, length], padded at the end. "
            f"Received: shape {tuple(prefix.shape)}"
        )
    return prefix


def _is_count(value):
    return _checks.is_integer(value) and value >= 0


def check_ids_and_prefix(eos_id, pad_id, prefix, batch_size):
    """Raises ValueError if the end has the id of padding, or a prefix has another batch size.

    Unknown ids and sizes are not checked.
    """
    if _checks.is_integer(eos_id) and eos_id == pad_id:
        raise ValueError(
            "Expected different `eos_id` and `pad_id`: padding is never chosen, so no sentence "
            f"would end. Received: {eos_id} for both."
        )
    if prefix is not None and _checks.differ(prefix.shape[0], batch_size):
        raise ValueError(
            f"Expected `prefix` with a row for each of the {batch_size} sentences. Received: shape "
            f"{tuple(prefix.shape)}."
        )


def constrain(log_probs, ids, i, constraints, eos_id=1, pad_id=0):
    """Returns log-probabilities with all constraints applied and padding forbidden.

    Example:
    >>> from keras import ops
    >>> from t2t_relpos.decoding.constraints import Constraints, constrain
    >>> log_probs = ops.log([[0.1, 0.4, 0.3, 0.2]])
    >>> ids = ops.convert_to_tensor([[3, 2, 0]])
    >>> rules = Constraints(min_length=3, no_repeat_ngram_size=1)
    >>> (ops.convert_to_numpy(constrain(log_probs, ids, 2, rules)) > -1e6).tolist()
    [[False, False, False, False]]
    """
    allowed = log_probs
    if _is_enabled(constraints.repetition_penalty, 1):
        allowed = penalize_repetitions(allowed, ids, constraints.repetition_penalty)
    if constraints.no_repeat_ngram_size:
        allowed = forbid_repeated_ngrams(allowed, ids, i, constraints.no_repeat_ngram_size, pad_id)
    if _is_enabled(constraints.min_length, 0):
        allowed = forbid_early_end(allowed, i, constraints.min_length, eos_id)
    allowed = forbid_padding(allowed, pad_id)
    if constraints.prefix is not None:
        allowed = force_prefix(allowed, log_probs, i, constraints.prefix, pad_id)
    return allowed


def forbid_padding(log_probs, pad_id):
    """Forbids padding."""
    return ops.where(_is_id(log_probs, pad_id), _value(FORBIDDEN, log_probs), log_probs)


def forbid_early_end(log_probs, i, min_length, eos_id):
    """Forbids the end of sentence before `min_length` ids."""
    early = ops.logical_and(_is_id(log_probs, eos_id), i < min_length)
    return ops.where(early, _value(NEVER, log_probs), log_probs)


def penalize_repetitions(log_probs, ids, penalty):
    """Multiplies the log-probabilities of previous ids and of padding by `penalty`."""
    penalized = ops.take_along_axis(log_probs, ids, axis=1) * ops.cast(penalty, log_probs.dtype)
    return _write(log_probs, ids, penalized)


def forbid_repeated_ngrams(log_probs, ids, i, size, pad_id):
    """Forbids ids that would repeat a sequence of `size` ids."""
    # True for each index where `size - 1` ids start that equal the latest `size - 1` ids.
    start = ops.arange(ops.shape(ids)[1], dtype="int32")
    repeats = ops.broadcast_to(start + size - 1 < i, ops.shape(ids))
    for j in range(size - 1):
        latest = ops.take(ids, ops.maximum(i - size + 1 + j, 0), axis=1)
        repeats = ops.logical_and(repeats, ops.roll(ids, -j, axis=1) == latest[:, None])
    # Padding is forbidden anyway.
    forbidden = ops.where(repeats, ops.roll(ids, 1 - size, axis=1), pad_id)
    return _write(log_probs, forbidden, ops.zeros_like(forbidden, log_probs.dtype) + FORBIDDEN)


def force_prefix(log_probs, model_log_probs, i, prefix, pad_id):
    """Forbids all other ids if the prefix has an id at index `i`."""
    _check_prefix_ids(prefix, log_probs.shape[-1], pad_id)
    # Padding after the prefix means that all ids are allowed.
    prefix = ops.pad(prefix, [[0, 0], [0, 1]], constant_values=pad_id)
    forced = ops.take(prefix, ops.minimum(i, ops.shape(prefix)[1] - 1), axis=1)[:, None]
    only = ops.where(_is_id(log_probs, forced), model_log_probs, _value(FORBIDDEN, model_log_probs))
    return ops.where(forced != pad_id, only, log_probs)


def _check_prefix_ids(prefix, vocab_size, pad_id):
    """Raises ValueError if ids of a prefix are known and out of range: they would forbid all."""
    if not (_checks.is_integer(pad_id) and 0 <= pad_id < vocab_size):
        return
    # Without keras.ops: in a loop of JAX, their results would be unknown.
    low, high = _checks.known_range(prefix)
    if low is not None and not 0 <= low <= high < vocab_size:
        raise ValueError(
            f"Expected ids of `prefix` in [0, {vocab_size}), the vocabulary of the model. "
            f"Received: ids from {low} to {high}."
        )


def _is_id(log_probs, wanted):
    return ops.arange(log_probs.shape[-1], dtype="int32") == wanted


def _value(value, like):
    return ops.cast(value, like.dtype)


def _write(log_probs, ids, values):
    """Returns `log_probs` with `log_probs[row, ids[row, l]] = values[row, l]`.

    If an id occurs several times in a row, its values must be equal.
    """
    rows = ops.arange(ops.shape(ids)[0], dtype="int32")[:, None] + ops.zeros_like(ids)
    indices = ops.stack([ops.reshape(rows, (-1,)), ops.reshape(ids, (-1,))], axis=1)
    return ops.scatter_update(log_probs, indices, ops.reshape(values, (-1,)))
