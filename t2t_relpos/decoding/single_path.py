"""Searches with one hypothesis per row: greedy search and sampling."""

from keras import ops

from t2t_relpos.decoding.constraints import EXCLUDED_BELOW, is_one_of, next_ids
from t2t_relpos.decoding.result import NO_OUTPUT_SCORE
from t2t_relpos.decoding.state_rows import join_context, split_context


def search_single_path(choose, step, state, limit, max_length, constraints):
    """Returns outputs with one hypothesis per row.

    Args:
        choose: `choose(log_probs [rows, V], allowed, i) -> ids [rows]`, which selects one of the
            allowed ids, bool `[rows, V]` or `[1, V]`, at index `i`.
        step: as in `greedy_search`.
        state: as in `greedy_search`, with a first dimension of rows.
        limit: int32 `[rows]`, largest number of ids of each row, at most `max_length`.
        max_length: L, an int or a scalar tensor.
        constraints: `Constraints` with a prefix for each row.

    Returns:
        (ids `[rows, L]`, sums of the log-probabilities `[rows]`, lengths `[rows]`).
    """
    context, rest = split_context(state)
    slots, pad_id = ops.arange(max_length, dtype="int32"), constraints.pad_id

    def proceed(i, path, rest):
        return ops.logical_and(i < max_length, ops.logical_not(ops.all(path["done"])))

    def advance(i, path, rest):
        logits, new_state = step(path["last"], join_context(context, rest))
        ids, done = path["ids"], path["done"]
        log_probs, allowed, ends_early = next_ids(logits, ids, i, constraints)
        chosen = choose(log_probs, allowed, i)
        log_prob = ops.take_along_axis(log_probs, chosen[:, None], axis=1)[:, 0]
        # An id that the model excludes is only chosen if there is no other.
        log_prob = ops.where(log_prob > EXCLUDED_BELOW, log_prob, 0.0)
        chosen = ops.where(done, pad_id, chosen)
        is_end = is_one_of(chosen, constraints.end_ids)
        breaks_rules = path["breaks_rules"]
        if ends_early is not None:
            ends_early = ops.logical_and(ends_early, ops.logical_not(done))
            breaks_rules = ops.logical_or(breaks_rules, ends_early)
        new = {
            "ids": ops.where(slots == i, chosen[:, None], ids),
            "scores": path["scores"] + ops.where(done, 0.0, log_prob),
            "done": ops.logical_or(done, ops.logical_or(is_end, i + 1 >= limit)),
            "last": chosen,
            "breaks_rules": breaks_rules,
        }
        return i + 1, new, split_context(new_state)[1]

    zeros = ops.zeros_like(limit)
    start = {
        "ids": zeros[:, None] + ops.zeros_like(slots)[None, :] + pad_id,
        "scores": ops.cast(zeros, "float32"),
        "done": limit <= 0,
        "last": zeros + pad_id,
        "breaks_rules": zeros > 0,
    }
    first = ops.convert_to_tensor(0, dtype="int32")
    _, path, _ = ops.while_loop(proceed, advance, (first, start, rest))
    lengths = ops.sum(ops.cast(path["ids"] != pad_id, "int32"), axis=-1)
    scores = ops.where(path["breaks_rules"], NO_OUTPUT_SCORE, path["scores"])
    return path["ids"], scores, ops.cast(lengths, "int32")


def limits(batch_size, max_length, length_limit):
    """Returns the largest number of ids of each sentence, int32 `[B]`."""
    limit = ops.zeros((batch_size,), dtype="int32") + max_length
    if length_limit is None:
        return limit
    return ops.minimum(ops.cast(length_limit, "int32"), limit)
