"""Searches with one hypothesis per row: greedy search and sampling."""

from keras import ops

from t2t_relpos.decoding.constraints import constrain
from t2t_relpos.decoding.state_rows import join_context, split_context


def search_single_path(choose, step, state, limit, max_length, constraints, eos_id, pad_id):
    """Returns outputs with one hypothesis per row.

    Args:
        choose: `choose(log_probs [rows, V], i) -> ids [rows]`, which selects the ids
            at index `i`.
        step: as in `greedy_search`.
        state: as in `greedy_search`, with a first dimension of rows.
        limit: int32 `[rows]`, largest number of ids of each row, at most `max_length`.
        max_length: L, an int or a scalar tensor.
        constraints: `Constraints` with a prefix for each row.
        eos_id: as in `greedy_search`.
        pad_id: as in `greedy_search`.

    Returns:
        (ids `[rows, L]`, sums of the log-probabilities `[rows]`, lengths `[rows]`).
    """
    context, rest = split_context(state)
    slots = ops.arange(max_length, dtype="int32")

    def proceed(i, ids, scores, done, last, rest):
        return ops.logical_and(i < max_length, ops.logical_not(ops.all(done)))

    def advance(i, ids, scores, done, last, rest):
        logits, new_state = step(last, join_context(context, rest))
        log_probs = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
        log_probs = constrain(log_probs, ids, i, constraints, eos_id, pad_id)
        chosen = choose(log_probs, i)
        log_prob = ops.take_along_axis(log_probs, chosen[:, None], axis=1)[:, 0]
        chosen = ops.where(done, pad_id, chosen)
        scores = scores + ops.where(done, 0.0, log_prob)
        ids = ops.where(slots == i, chosen[:, None], ids)
        done = ops.logical_or(done, ops.logical_or(chosen == eos_id, i + 1 >= limit))
        return i + 1, ids, scores, done, chosen, split_context(new_state)[1]

    zeros = ops.zeros_like(limit)
    start = (
        ops.convert_to_tensor(0, dtype="int32"),
        zeros[:, None] + ops.zeros_like(slots)[None, :] + pad_id,
        ops.cast(zeros, "float32"),
        limit <= 0,
        zeros + pad_id,
        rest,
    )
    _, ids, scores, *_ = ops.while_loop(proceed, advance, start)
    return ids, scores, ops.sum(ops.cast(ids != pad_id, "int32"), axis=-1)


def limits(batch_size, max_length, length_limit):
    """Returns the largest number of ids of each sentence, int32 `[B]`."""
    limit = ops.zeros((batch_size,), dtype="int32") + max_length
    if length_limit is None:
        return limit
    return ops.minimum(ops.cast(length_limit, "int32"), limit)
