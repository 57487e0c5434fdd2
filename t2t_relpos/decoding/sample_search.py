"""Searches with one hypothesis per row: greedy search and sampling.

Filters restrict the ids of sampling. They are functions of logits `[rows, V]` and masks, bool
`[rows, V]` or `[1, V]`, which say which ids are allowed. At least one id of each row is allowed.
They return a mask `[rows, V]`.
"""

import keras
from keras import ops

from t2t_relpos import _checks
from t2t_relpos._conventions import EOS_ID, NO_OUTPUT_SCORE, PAD_ID
from t2t_relpos.backend import as_size
from t2t_relpos.backend import top_k as stable_top_k
from t2t_relpos.decoding.constraints import (
    EXCLUDED_BELOW,
    MASKED,
    checked_constraints,
    is_one_of,
    next_ids,
)
from t2t_relpos.decoding.search import DecodingResult, Request, run


def greedy_search(
    step,
    state,
    batch_size,
    max_length,
    *,
    eos_id=EOS_ID,
    pad_id=PAD_ID,
    length_limit=None,
    min_length=0,
    prefix=None,
    no_repeat_ngram_size=0,
    repetition_penalty=1.0,
    stop_token_ids=None,
):
    """Returns outputs that consist of the most likely id of each step.

    A sentence stops at its end or at its limit. On TensorFlow without XLA, finished sentences are
    removed from the batch.

    Args:
        step: `step(ids [rows], state) -> (logits [rows, V], state)`, with rows = B at first. The
            first ids are `pad_id`. It may have the methods `resize` and `capacity`, as in
            `beam_search`.
        state: a nested dict of tensors `[B, ...]`. The entry under
            `"context"` never changes.
        batch_size: B, an int or a scalar tensor.
        max_length: largest number of ids of an output, an int or a scalar tensor.
        eos_id: id that ends a sentence. Default: 1.
        pad_id: padding after the end; never chosen. Default: 0.
        length_limit: int `[B]`, largest number of ids of each sentence; default
            `max_length`.
        min_length: as in `beam_search`. Default: 0.
        prefix: as in `beam_search`. Default: None.
        no_repeat_ngram_size: as in `beam_search`. Default: 0.
        repetition_penalty: as in `beam_search`. Default: 1.0.
        stop_token_ids: as in `beam_search`. Default: None.

    Returns:
        A `DecodingResult` with n = 1; scores are sums of log-probabilities. If the constraints
        leave no id, the sentence ends early and its score is -1e7.

    Raises:
        ValueError: if `max_length` is below 1, a constraint is out of range, an end id is equal to
            `pad_id`, or the state is too small, as in `beam_search`.

    Example:
    >>> import numpy as np
    >>> from keras import ops
    >>> from t2t_relpos.decoding import greedy_search
    >>> step = lambda ids, state: (ops.log([[0.1, 0.2, 0.7]]), state)
    >>> result = greedy_search(step, {"none": np.zeros((1, 1))}, 1, 3)
    >>> ops.convert_to_numpy(result.ids).tolist()
    [[[2, 2, 2]]]
    """
    constraints = checked_constraints(
        min_length, no_repeat_ngram_size, repetition_penalty, prefix, eos_id, stop_token_ids, pad_id
    )
    request = Request(step, state, batch_size, max_length, length_limit, constraints)

    def most_likely(log_probs, allowed, i, fixed):
        chosen = ops.argmax(ops.where(allowed, log_probs, MASKED), axis=-1)
        return ops.cast(chosen, "int32")

    return run(SinglePath(most_likely, request), request)


def sample_search(
    step,
    state,
    batch_size,
    max_length,
    *,
    temperature=1.0,
    top_k=None,
    top_p=None,
    num_results=1,
    seed=None,
    uniform=None,
    eos_id=EOS_ID,
    pad_id=PAD_ID,
    length_limit=None,
    min_length=0,
    prefix=None,
    no_repeat_ngram_size=0,
    repetition_penalty=1.0,
    stop_token_ids=None,
):
    """Returns outputs whose ids are drawn at random.

    Each step applies the constraints and `top_k`, divides log-probabilities by the temperature,
    applies `top_p`, and draws one of the remaining ids.

    All random numbers are drawn before the first step, one for each id of
    each output. The same seed and sizes (B, n, L) give the same outputs.
    The outputs of a sentence depend on its index in the batch, but not on the
    other sentences.

    Args:
        step: `step(ids [rows], state) -> (logits [rows, V], state)`, as in `greedy_search`, with
            rows = B * num_results at first.
        state: as in `beam_search`; rows are never reordered.
        batch_size: B, an int or a scalar tensor.
        max_length: L, largest number of ids of an output, an int or a scalar tensor.
        temperature: above 0. Below 1, likely ids become more likely. Near 0, the most likely id is
            drawn; with infinity, all remaining ids are equally likely. Default: 1.0.
        top_k: number of most likely ids to draw from; default all.
        top_p: draws from the fewest ids whose probabilities sum to this number,
            above 0 and at most 1; default all.
        num_results: n, number of independent outputs of a sentence. Default: 1.
        seed: an int, a `keras.random.SeedGenerator`, or None for the global generator of Keras.
            Default: None.
        uniform: random numbers in [0, 1) instead of a seed, float `[B, n, L]`. If they are drawn
            per sentence, results do not depend on the batch. Default: None.
        eos_id: as in `beam_search`. Default: 1.
        pad_id: as in `beam_search`. Default: 0.
        length_limit: as in `beam_search`. Default: None.
        min_length: as in `beam_search`. Default: 0.
        prefix: as in `beam_search`. Default: None.
        no_repeat_ngram_size: as in `beam_search`. Default: 0.
        repetition_penalty: as in `beam_search`. Default: 1.0.
        stop_token_ids: as in `beam_search`. Default: None.

    Temperature, `top_k`, `top_p` and `num_results` may be scalar tensors, whose
    values are not checked.

    Returns:
        A `DecodingResult`, ids `[B, n, L]`, in the order drawn. Scores are sums
        of log-probabilities under the constraints, before the temperature. If
        the constraints leave no id, as in `greedy_search`.

    Raises:
        ValueError: if `max_length` is below 1, a setting is out of range, both `seed` and `uniform`
            are given, `uniform` or `prefix` has another shape, an end id is equal to `pad_id`, or
            the state is too small, as in `beam_search`.

    Example:
    >>> import numpy as np
    >>> from keras import ops
    >>> from t2t_relpos.decoding import sample_search
    >>> table = np.log([[0.1, 0.1, 0.8], [0.1, 0.8, 0.1], [0.1, 0.8, 0.1]]).astype("float32")
    >>> step = lambda ids, state: (ops.take(table, ids, axis=0), state)
    >>> result = sample_search(step, {"none": np.zeros((1, 1))}, 1, 5, top_k=1, seed=7)
    >>> ops.convert_to_numpy(result.ids).tolist()
    [[[2, 1, 0, 0, 0]]]
    """
    check_sampling(temperature, top_k, top_p, num_results, "top_")
    constraints = checked_constraints(
        min_length, no_repeat_ngram_size, repetition_penalty, prefix, eos_id, stop_token_ids, pad_id
    )
    request = Request(step, state, batch_size, max_length, length_limit, constraints)
    num_results = as_size(num_results)
    uniform = _uniform((request.batch_size, num_results, request.max_length), seed, uniform)

    def choose(log_probs, allowed, i, fixed):
        allowed = _without_excluded(log_probs, allowed)
        if top_k is not None:
            allowed = keep_top_k(log_probs, allowed, top_k)
        logits = divide(log_probs, allowed, temperature)
        if top_p is not None:
            allowed = keep_top_p(logits, allowed, top_p)
        return draw(logits, allowed, ops.take(fixed["uniform"], i, axis=1))

    return run(SinglePath(choose, request, num_results, {"uniform": uniform}), request)


def _without_excluded(log_probs, allowed):
    """Returns `allowed` without ids that the model excludes, unless it excludes all."""
    likely = ops.logical_and(allowed, log_probs > EXCLUDED_BELOW)
    return ops.where(ops.any(likely, axis=-1, keepdims=True), likely, allowed)


def _uniform(shape, seed, uniform):
    """Returns the random numbers `[B * n, L]`."""
    if uniform is None:
        uniform = keras.random.uniform(shape, dtype="float32", seed=seed)
    elif seed is not None:
        raise ValueError(
            "Expected `seed` or `uniform`, the random numbers themselves. Received: both."
        )
    uniform = ops.cast(uniform, "float32")
    received = tuple(uniform.shape)
    if len(received) != 3 or any(map(_checks.differ, received, shape)):
        raise ValueError(
            "Expected `uniform` of shape [batch, num_results, max_length] = "
            f"{list(shape)}. Received: shape {list(received)}."
        )
    batch_size, num_results, max_length = shape
    return ops.reshape(uniform, (batch_size * num_results, max_length))


def check_sampling(temperature, k, p, num_results, prefix=""):
    """Raises ValueError if settings of sampling are known and out of range.

    The names of the arguments `k` and `p` start with `prefix`.
    """
    if not ops.is_tensor(temperature) and not temperature > 0:
        raise ValueError(
            "Expected `temperature` above 0 (near 0: almost greedy; use greedy_search or "
            f"GreedySampler for that). Received: {temperature!r}"
        )
    if p is not None and not ops.is_tensor(p) and not 0 < p <= 1:
        raise ValueError(f"Expected `{prefix}p` above 0 and at most 1. Received: {p!r}")
    if k is not None and not ops.is_tensor(k):
        _checks.positive_int(k, f"{prefix}k")
    if not ops.is_tensor(num_results):
        _checks.positive_int(num_results, "num_results")


class SinglePath:
    """Selection of one id for each hypothesis in every step. Hypotheses do not compete.

    The hypotheses are a dict of tensors `[B, n, ...]`: their `ids`, `last` ids and `scores`,
    whether the ids are complete, `is_complete`, and whether an end `breaks_rules`. `done`, bool
    `[B]`, says whether all hypotheses of a sentence are complete.

    Args:
        choose: `choose(log_probs [rows, V], allowed, i, fixed) -> ids [rows]`, which selects one of
            the allowed ids, bool `[rows, V]` or `[1, V]`, at index `i`.
        request: the `Request` of the search.
        num_results: n, an int or a scalar tensor. Default: 1.
        row_inputs: dict of tensors `[B * n, ...]` that `choose` reads. Default: None, none.
    """

    RESULT_ENTRIES = ("ids", "scores", "breaks_rules")

    def __init__(self, choose, request, num_results=1, row_inputs=None):
        self.choose = choose
        self.constraints = request.constraints
        self.num_rows = self.first_rows = num_results
        self.row_inputs = row_inputs or {}
        self.slots = ops.arange(request.max_length, dtype="int32")

    def start(self, limit):
        """Returns the hypotheses before the first step."""
        zeros = ops.zeros_like(limit)[:, None] + ops.zeros((self.num_rows,), dtype="int32")
        return {
            "ids": zeros[..., None] + ops.zeros_like(self.slots) + self.constraints.pad_id,
            "scores": ops.cast(zeros, "float32"),
            "last": zeros + self.constraints.pad_id,
            "is_complete": zeros + limit[:, None] <= 0,
            "breaks_rules": zeros > 0,
            "done": limit <= 0,
        }

    def advance(self, paths, i, logits, limit, fixed):
        """Extends every hypothesis by one id.

        Args:
            paths: the hypotheses.
            i: number of steps so far.
            logits: `[B * n, V]`.
            limit: int `[B]`, largest number of ids of each sentence.
            fixed: the `row_inputs`, and the `prefix` of each row if there is one.

        Returns:
            (the new hypotheses, None).
        """
        shape, is_complete = ops.shape(paths["last"]), paths["is_complete"]
        rows = ops.reshape(paths["ids"], (-1, ops.shape(paths["ids"])[2]))
        constraints = self.constraints._replace(prefix=fixed.get("prefix"))
        log_probs, allowed, ends_early = next_ids(logits, rows, i, constraints)
        chosen = self.choose(log_probs, allowed, i, fixed)
        log_prob = ops.take_along_axis(log_probs, chosen[:, None], axis=1)
        # An id that the model excludes is only chosen if there is no other.
        log_prob = ops.where(log_prob > EXCLUDED_BELOW, log_prob, 0.0)
        log_prob, chosen = ops.reshape(log_prob, shape), ops.reshape(chosen, shape)
        chosen = ops.where(is_complete, constraints.pad_id, chosen)
        breaks_rules = paths["breaks_rules"]
        if ends_early is not None:
            ends_early = ops.reshape(ends_early, shape)
            ends_early = ops.logical_and(ends_early, ops.logical_not(is_complete))
            breaks_rules = ops.logical_or(breaks_rules, ends_early)
        is_last = ops.logical_or(is_one_of(chosen, constraints.end_ids), i + 1 >= limit[:, None])
        new = {
            "ids": ops.where(self.slots == i, chosen[..., None], paths["ids"]),
            "scores": paths["scores"] + ops.where(is_complete, 0.0, log_prob),
            "last": chosen,
            "is_complete": ops.logical_or(is_complete, is_last),
            "breaks_rules": breaks_rules,
        }
        return new | {"done": ops.all(new["is_complete"], axis=1)}, None

    def result(self, paths):
        """Returns the outputs as a `DecodingResult`.

        Args:
            paths: the hypotheses, or only the `RESULT_ENTRIES`.
        """
        ids = paths["ids"]
        lengths = ops.sum(ops.cast(ids != self.constraints.pad_id, "int32"), axis=-1)
        scores = ops.where(paths["breaks_rules"], NO_OUTPUT_SCORE, paths["scores"])
        return DecodingResult(ids, scores, ops.cast(lengths, "int32"))


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
    >>> from t2t_relpos.decoding.sample_search import keep_top_k
    >>> logits, allowed = ops.convert_to_tensor([[1.0, 3.0, 1.0, 2.0]]), [[True, True, True, False]]
    >>> ops.convert_to_numpy(keep_top_k(logits, allowed, 2)).tolist()
    [[True, True, False, False]]
    """
    logits = _masked(logits, allowed)
    size = logits.shape[-1]
    k = min(int(k), size) if _checks.is_integer(k) else ops.minimum(as_size(k), size)
    values, indices = stable_top_k(logits, k)
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
    >>> from t2t_relpos.decoding.sample_search import keep_top_p
    >>> logits = ops.log(ops.convert_to_tensor([[0.25, 0.5, 0.125, 0.125]]))
    >>> ops.convert_to_numpy(keep_top_p(logits, [[True] * 4], 0.75)).tolist()
    [[True, True, False, False]]
    """
    logits = _masked(logits, allowed)
    values, indices = stable_top_k(logits, logits.shape[-1])
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
