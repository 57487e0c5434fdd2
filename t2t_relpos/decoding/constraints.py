"""Constraints of searches: the ids that may follow the previous ones, and their log-probabilities.

Masks say which ids are allowed. Log-probabilities of allowed ids are not normalized again, as in
Hugging Face's beam search. CTranslate2 forbids ids before the softmax instead: its allowed ids gain
the probability of forbidden ones, and forced ids don't lower the score.

`ids` are the previous ids, int `[rows, L]`. `i` is their number, and `ids[:, i:]` is padding.
"""

from typing import NamedTuple

import numpy as np
from keras import ops

from t2t_relpos import _checks
from t2t_relpos._conventions import EOS_ID, PAD_ID
from t2t_relpos.backend import as_size

# Replaces the values of forbidden entries where entries are sorted or drawn. Results never have it.
MASKED = -1e30
# Replaces -inf in logits, which could not be told from a forbidden entry or be subtracted.
LOWEST_LOGIT = -1e20
# A model excludes an id with a log-probability below this, for example by a logit of -1e9 or -inf.
EXCLUDED_BELOW = -1e4
# Range of repetition penalties: products with logits stay finite in float32.
_SMALLEST_PENALTY, _LARGEST_PENALTY = 1e-9, 1e9


class Constraints(NamedTuple):
    """Constraints of a search. The defaults only forbid padding.

    Attributes:
        min_length: smallest number of ids before an end, an int or a scalar tensor.
        prefix: int `[rows, P]`, forced first ids, padded at the end; or None. The score includes
            their log-probabilities. The other constraints only apply to later ids.
        no_repeat_ngram_size: n; no sequence of n ids occurs twice in an output. An int, 0 for no
            constraint.
        repetition_penalty: divides positive logits of previous ids, and multiplies negative ones
            (Keskar et al. 2019, as in CTranslate2); a float or a scalar tensor, 1 for none.
        end_ids: tuple of the ids that end an output.
        pad_id: id of padding.
    """

    min_length: object = 0
    prefix: object = None
    no_repeat_ngram_size: int = 0
    repetition_penalty: object = 1.0
    end_ids: tuple = (EOS_ID,)
    pad_id: object = PAD_ID

    @property
    def any(self):
        """Whether there is a constraint in addition to padding."""
        return self.prefix is not None or any(
            _is_enabled(getattr(self, name), disabled) for name, disabled in _DISABLED.items()
        )


_DISABLED = {"min_length": 0, "no_repeat_ngram_size": 0, "repetition_penalty": 1}


def _is_enabled(value, disabled):
    return ops.is_tensor(value) or value != disabled


def checked_constraints(
    min_length=0,
    no_repeat_ngram_size=0,
    repetition_penalty=1.0,
    prefix=None,
    eos_id=EOS_ID,
    stop_token_ids=None,
    pad_id=PAD_ID,
):
    """Returns the `Constraints` of a search with these arguments of `beam_search`.

    Raises:
        ValueError: if an argument is out of range. Values of tensors are not checked.
    """
    if not ops.is_tensor(min_length):
        if not _checks.is_count(min_length):
            raise ValueError(
                "Expected `min_length` to be an int of at least 0 or a scalar tensor. "
                f"Received: {min_length!r}"
            )
        min_length = int(min_length)
    if not _checks.is_count(no_repeat_ngram_size):
        raise ValueError(
            "Expected `no_repeat_ngram_size` to be an int of at least 0 (0: any may repeat). "
            f"Received: {no_repeat_ngram_size!r}"
        )
    if (
        not ops.is_tensor(repetition_penalty)
        and not _SMALLEST_PENALTY <= repetition_penalty <= _LARGEST_PENALTY
    ):
        raise ValueError(
            "Expected `repetition_penalty` above 0 (1: none, more: fewer repetitions), from "
            f"{_SMALLEST_PENALTY} to {_LARGEST_PENALTY}. Received: {repetition_penalty!r}"
        )
    if prefix is not None:
        prefix = ops.cast(prefix, "int32")
        if len(prefix.shape) != 2:
            raise ValueError(
                "Expected `prefix` of shape [batch, length], padded at the end. "
                f"Received: shape {tuple(prefix.shape)}"
            )
    end_ids = _checked_ends(eos_id, stop_token_ids, pad_id)
    min_length, size = as_size(min_length), int(no_repeat_ngram_size)
    return Constraints(min_length, prefix, size, repetition_penalty, end_ids, pad_id)


def _checked_ends(eos_id, stop_token_ids, pad_id):
    """Returns the tuple of ids that end an output."""
    for name, value in (("eos_id", eos_id), ("pad_id", pad_id)):
        if not (ops.is_tensor(value) or _checks.is_integer(value)):
            raise ValueError(
                f"Expected `{name}` to be an int or a scalar tensor. Received: {name}={value!r}"
            )
    if _checks.is_integer(eos_id) and eos_id == pad_id:
        raise ValueError(
            "Expected different `eos_id` and `pad_id`: padding is never chosen, so no sentence "
            f"would end. Received: {eos_id} for both."
        )
    return (eos_id,) if stop_token_ids is None else checked_stop_ids(stop_token_ids, pad_id)


def checked_stop_ids(stop_token_ids, pad_id):
    """Returns the ids that end an output as a tuple of different ints.

    Raises:
        ValueError: if they are not ints of at least 0, or one is the id of padding.
    """
    if not isinstance(stop_token_ids, (list, tuple, set, frozenset, range, np.ndarray)):
        raise ValueError(
            "Expected `stop_token_ids` to be a tuple of ids, such as (1, 5). Received: "
            f"{stop_token_ids!r}"
        )
    if not all(map(_checks.is_count, stop_token_ids)):
        raise ValueError(
            f"Expected `stop_token_ids` to be ints of at least 0. Received: {stop_token_ids!r}"
        )
    found = tuple(sorted({int(token) for token in stop_token_ids}))
    if _checks.is_integer(pad_id) and pad_id in found:
        raise ValueError(
            f"Expected `stop_token_ids` without `pad_id`, {pad_id}: padding is never chosen. "
            f"Received: {stop_token_ids!r}"
        )
    return found


class NextIds(NamedTuple):
    """The ids that may follow the previous ones.

    Attributes:
        log_probs: float32 `[rows, V]`, finite, also of ids that are not allowed.
        allowed: bool `[rows, V]` or `[1, V]`.
        ends_early: bool `[B]`, whether the constraints allow a sentence no id, so that ends are
            allowed instead. None if there is always an allowed id.
    """

    log_probs: object
    allowed: object
    ends_early: object


def next_ids(logits, ids, i, constraints, is_active=None):
    """Returns the `NextIds` after `ids`.

    Args:
        logits: `[rows, V]`.
        ids: int `[rows, L]`.
        i: number of previous ids.
        constraints: `Constraints` with a prefix for each row.
        is_active: bool `[B, k]`, the rows of each sentence that may continue. Default: each row is
            a sentence.

    Example:
    >>> from keras import ops
    >>> from t2t_relpos.decoding.constraints import Constraints, next_ids
    >>> ids = ops.convert_to_tensor([[3, 0, 0]])
    >>> rules = Constraints(min_length=3, no_repeat_ngram_size=1)
    >>> found = next_ids(ops.log([[0.1, 0.4, 0.3, 0.2]]), ids, 1, rules)
    >>> ops.convert_to_numpy(found.allowed).tolist()
    [[False, False, True, False]]
    """
    logits = ops.maximum(ops.cast(logits, "float32"), LOWEST_LOGIT)
    size, pad_id = constraints.no_repeat_ngram_size, constraints.pad_id
    has_min_length = _is_enabled(constraints.min_length, 0)
    tokens = ops.arange(logits.shape[-1], dtype="int32")
    is_end = is_one_of(tokens, constraints.end_ids) if size or has_min_length else None
    allowed, forced, ends_early = (tokens != pad_id)[None], None, None
    if has_min_length:
        is_early_end = ops.logical_and(is_end, i < constraints.min_length)
        allowed = ops.logical_and(allowed, ops.logical_not(is_early_end))
    if size:
        allowed = ops.broadcast_to(allowed, ops.shape(logits))
        allowed = forbid_repeated_ngrams(allowed, ids, i, size, pad_id)
    if constraints.prefix is not None:
        forced = forced_ids(constraints.prefix, i, logits.shape[-1], pad_id)[:, None]
        allowed = ops.where(forced != pad_id, tokens == forced, allowed)
    if is_end is not None:
        # Without an id that ends an output, all ids but padding are allowed.
        instead = is_end if constraints.end_ids else tokens != pad_id
        allowed = ops.broadcast_to(allowed, ops.shape(logits))
        allowed, ends_early = _allow_instead(allowed, instead, is_active)
    if _is_enabled(constraints.repetition_penalty, 1):
        logits = penalize_repetitions(logits, ids, constraints, forced)
    return NextIds(ops.log_softmax(logits, axis=-1), allowed, ends_early)


def _allow_instead(allowed, instead, is_active):
    """Allows the ids `instead`, bool `[V]`, in sentences without an allowed id.

    Returns (allowed `[rows, V]`, whether a sentence had no allowed id `[B]`).
    """
    rows, vocab_size = ops.shape(allowed)
    batch, beams = (rows, 1) if is_active is None else ops.shape(is_active)
    by_sentence = ops.reshape(allowed, (batch, beams, vocab_size))
    if is_active is not None:
        by_sentence = ops.logical_and(by_sentence, is_active[..., None])
    has_none = ops.logical_not(ops.any(by_sentence, axis=(1, 2)))
    row_has_none = ops.repeat(has_none, beams, axis=0)[:, None]
    return ops.logical_or(allowed, ops.logical_and(row_has_none, instead)), has_none


def penalize_repetitions(logits, ids, constraints, forced=None):
    """Divides positive logits of previous ids by the penalty, and multiplies negative ones by it.

    Args:
        logits: `[rows, V]`.
        ids: int `[rows, L]`.
        constraints: `Constraints` with the penalty and the id of padding, which is not penalized.
        forced: int `[rows, 1]`, ids of a prefix, whose rows are not penalized; or None.
    """
    penalty = ops.cast(constraints.repetition_penalty, logits.dtype)
    old = ops.take_along_axis(logits, ids, axis=1)
    new = ops.where(old > 0, old / penalty, old * penalty)
    is_penalized = ids != constraints.pad_id
    if forced is not None:
        is_penalized = ops.logical_and(is_penalized, forced == constraints.pad_id)
    return _write(logits, ids, ops.where(is_penalized, new, old))


def forbid_repeated_ngrams(allowed, ids, i, size, pad_id):
    """Forbids ids that would repeat a sequence of `size` ids, and padding.

    Args:
        allowed: bool `[rows, V]`.
        ids: int `[rows, L]`.
        i: number of previous ids.
        size: number of ids, at least 1.
        pad_id: id of padding.
    """
    # True for each index where `size - 1` ids start that equal the latest `size - 1` ids.
    start = ops.arange(ops.shape(ids)[1], dtype="int32")
    repeats = ops.broadcast_to(start + size - 1 < i, ops.shape(ids))
    for j in range(size - 1):
        latest = ops.take(ids, ops.maximum(i - size + 1 + j, 0), axis=1)
        repeats = ops.logical_and(repeats, ops.roll(ids, -j, axis=1) == latest[:, None])
    forbidden = ops.where(repeats, ops.roll(ids, 1 - size, axis=1), pad_id)
    return _write(allowed, forbidden, ops.zeros_like(forbidden, dtype="bool"))


def is_one_of(tokens, ids):
    """Returns a mask of the tokens that are in a tuple of ids."""
    if len(ids) == 1:
        return tokens == ids[0]
    if not ids:
        return ops.zeros_like(tokens, dtype="bool")
    return ops.any(tokens[..., None] == ops.convert_to_tensor(ids, dtype="int32"), axis=-1)


def forced_ids(prefix, i, vocab_size, pad_id):
    """Returns the ids of the prefix at index `i`, int `[rows]`; padding after its end."""
    _check_prefix_ids(prefix, vocab_size, pad_id)
    prefix = ops.pad(prefix, [[0, 0], [0, 1]], constant_values=pad_id)
    return ops.take(prefix, ops.minimum(i, ops.shape(prefix)[1] - 1), axis=1)


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


def _write(values, ids, updates):
    """Returns `values` with `values[row, ids[row, l]] = updates[row, l]`.

    If an id occurs several times in a row, its updates must be equal.
    """
    rows = ops.arange(ops.shape(ids)[0], dtype="int32")[:, None] + ops.zeros_like(ids)
    indices = ops.stack([ops.reshape(rows, (-1,)), ops.reshape(ids, (-1,))], axis=1)
    return ops.scatter_update(values, indices, ops.reshape(updates, (-1,)))
