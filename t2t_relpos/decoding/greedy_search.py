"""Greedy search."""

from keras import ops

from t2t_relpos._backend import as_size
from t2t_relpos.decoding.capacity import check_capacity
from t2t_relpos.decoding.constraints import MASKED, checked_constraints
from t2t_relpos.decoding.result import DecodingResult
from t2t_relpos.decoding.single_path import limits, search_single_path


def greedy_search(
    step,
    state,
    batch_size,
    max_length,
    *,
    eos_id=1,
    pad_id=0,
    length_limit=None,
    min_length=0,
    prefix=None,
    no_repeat_ngram_size=0,
    repetition_penalty=1.0,
    stop_token_ids=None,
):
    """Returns outputs that consist of the most likely id of each step.

    A sentence stops at its end or at its limit.

    Args:
        step: `step(ids [B], state) -> (logits [B, V], state)`. The first ids are
            `pad_id`.
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
        ValueError: if a constraint is out of range, an end id is equal to `pad_id`, or the state is
            too small, as in `beam_search`.

    Example:
    >>> import numpy as np
    >>> from keras import ops
    >>> from t2t_relpos.decoding import greedy_search
    >>> step = lambda ids, state: (ops.log([[0.1, 0.2, 0.7]]), state)
    >>> result = greedy_search(step, {"none": np.zeros((1, 1))}, 1, 3)
    >>> ops.convert_to_numpy(result.ids).tolist()
    [[[2, 2, 2]]]
    """
    batch_size, max_length = as_size(batch_size), as_size(max_length)
    constraints = checked_constraints(min_length, prefix, no_repeat_ngram_size, repetition_penalty)
    constraints = constraints.with_ids(eos_id, stop_token_ids, pad_id, batch_size)

    def most_likely(log_probs, allowed, i):
        chosen = ops.argmax(ops.where(allowed, log_probs, MASKED), axis=-1)
        return ops.cast(chosen, "int32")

    check_capacity(step, state, max_length, length_limit)
    limit = limits(batch_size, max_length, length_limit)
    result = search_single_path(most_likely, step, state, limit, max_length, constraints)
    return DecodingResult(*(x[:, None] for x in result))
