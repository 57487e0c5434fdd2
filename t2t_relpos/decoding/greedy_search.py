"""The most likely next id, again and again."""

from keras import ops

from t2t_relpos.decoding.result import DecodingResult
from t2t_relpos.decoding.rows import join_context, split_context


def greedy_search(step, state, batch_size, max_length, eos_id=1, pad_id=0, length_limit=None):
    """Greedy decoding; every sentence ends at its own end of sentence or limit.

    Args:
        step: `step(ids [B], state) -> (logits [B, V], state)`. The first ids are
            `pad_id`.
        state: a nested dict of tensors `[B, ...]`; what stands under
            `"context"` does not change.
        batch_size: B, an int or a scalar tensor.
        max_length: most ids to make, an int or a scalar tensor.
        eos_id: ends a sentence.
        pad_id: fills up; never chosen.
        length_limit: int `[B]`, most ids of each sentence; default
            `max_length`.

    Returns:
        A `DecodingResult` with n = 1; scores are sums of log-probabilities.

    Example:

    >>> import numpy as np
    >>> from t2t_relpos.decoding import greedy_search
    >>> step = lambda ids, state: (ops.log([[0.1, 0.2, 0.7]]), state)
    >>> result = greedy_search(step, {"none": np.zeros((1, 1))}, 1, 3)
    >>> ops.convert_to_numpy(result.ids).tolist()
    [[[2, 2, 2]]]
    """
    context, rest = split_context(state)
    rows = ops.arange(batch_size, dtype="int32")
    limit = rows * 0 + max_length if length_limit is None else length_limit
    limit = ops.minimum(ops.cast(limit, "int32"), max_length)
    slots = ops.arange(max_length, dtype="int32")

    def proceed(i, ids, scores, done, last, rest):
        return ops.logical_and(i < max_length, ops.logical_not(ops.all(done)))

    def advance(i, ids, scores, done, last, rest):
        logits, new_state = step(last, join_context(context, rest))
        log_probs = ops.log_softmax(logits, axis=-1)
        pad = ops.arange(logits.shape[-1]) == pad_id
        log_probs = ops.where(pad, ops.cast(-1e9, log_probs.dtype), log_probs)
        best = ops.cast(ops.argmax(log_probs, axis=-1), "int32")
        best = ops.where(done, pad_id, best)
        scores = scores + ops.where(done, 0.0, ops.max(log_probs, axis=-1))
        ids = ops.where(slots == i, best[:, None], ids)
        done = ops.logical_or(done, ops.logical_or(best == eos_id, i + 1 >= limit))
        return i + 1, ids, scores, done, best, split_context(new_state)[1]

    zeros = ops.zeros_like(rows)
    start = (
        ops.convert_to_tensor(0, dtype="int32"),
        zeros[:, None] + ops.zeros_like(slots)[None, :] + pad_id,
        ops.cast(zeros, "float32"),
        limit <= 0,
        zeros + pad_id,
        rest,
    )
    _, ids, scores, *_ = ops.while_loop(proceed, advance, start)
    lengths = ops.sum(ops.cast(ids != pad_id, "int32"), axis=-1)
    return DecodingResult(ids[:, None], scores[:, None], lengths[:, None])
