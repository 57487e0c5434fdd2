"""Sampling from the probabilities of a model."""

import keras
from keras import ops

from t2t_relpos import _checks
from t2t_relpos._backend import as_size
from t2t_relpos.decoding.capacity import check_capacity
from t2t_relpos.decoding.constraints import EXCLUDED_BELOW, checked_constraints
from t2t_relpos.decoding.filters import divide, draw, keep_top_k, keep_top_p
from t2t_relpos.decoding.result import DecodingResult
from t2t_relpos.decoding.single_path import limits, search_single_path
from t2t_relpos.decoding.state_rows import repeat_rows


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
    eos_id=1,
    pad_id=0,
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
        step: `step(ids [rows], state) -> (logits [rows, V], state)` with
            rows = B * num_results. The first ids are `pad_id`.
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
        ValueError: if a setting is out of range, both `seed` and `uniform` are given, `uniform` or
            `prefix` has another shape, an end id is equal to `pad_id`, or the state is too small,
            as in `beam_search`.

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
    _check(temperature, top_k, top_p, num_results)
    sizes = batch_size, max_length, num_results
    batch_size, max_length, num_results = map(as_size, sizes)
    check_capacity(step, state, max_length, length_limit)
    constraints = checked_constraints(min_length, prefix, no_repeat_ngram_size, repetition_penalty)
    constraints = constraints.with_ids(eos_id, stop_token_ids, pad_id, batch_size)
    if constraints.prefix is not None:
        prefix = ops.repeat(constraints.prefix, num_results, axis=0)
        constraints = constraints._replace(prefix=prefix)
    shape = (batch_size, num_results, max_length)
    uniform = _uniform(shape, seed, uniform)

    def choose(log_probs, allowed, i):
        allowed = _without_excluded(log_probs, allowed)
        if top_k is not None:
            allowed = keep_top_k(log_probs, allowed, top_k)
        logits = divide(log_probs, allowed, temperature)
        if top_p is not None:
            allowed = keep_top_p(logits, allowed, top_p)
        return draw(logits, allowed, ops.take(uniform, i, axis=1))

    limit = ops.repeat(limits(batch_size, max_length, length_limit), num_results, axis=0)
    state = repeat_rows(state, num_results)
    ids, scores, lengths = search_single_path(choose, step, state, limit, max_length, constraints)
    return DecodingResult(
        ops.reshape(ids, shape), ops.reshape(scores, shape[:2]), ops.reshape(lengths, shape[:2])
    )


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


def _check(temperature, top_k, top_p, num_results):
    if not ops.is_tensor(temperature) and not temperature > 0:
        raise ValueError(
            "Expected `temperature` above 0 (near 0: almost greedy; use greedy_search for that). "
            f"Received: {temperature!r}"
        )
    if top_p is not None and not ops.is_tensor(top_p) and not 0 < top_p <= 1:
        raise ValueError(f"Expected `top_p` above 0 and at most 1. Received: {top_p!r}")
    for name, count in (("top_k", top_k), ("num_results", num_results)):
        is_off = count is None and name == "top_k"
        if not is_off and not ops.is_tensor(count):
            _checks.positive_int(count, name)
