"""Scores: the length penalty, the result of a search, and the scores of given ids."""

from typing import NamedTuple

from keras import ops

# Score of an entry without an output, and of an output that ends where constraints forbid it.
NO_OUTPUT_SCORE = -1e7


class DecodingResult(NamedTuple):
    """Outputs of a search, best first; with `sample_search` in the order drawn.

    Finished outputs of a beam search, which end with an end id, come before unfinished ones, also
    if their scores are lower. If there are fewer than n outputs in all, or with `t2t_exact` fewer
    than n finished ones, the last entries have no output: padding only, length 0 and the score
    -1e7.

    Attributes:
        ids: int32 `[B, n, L]`, end of sentence included, then padded with 0.
        scores: float32 `[B, n]`, higher is better.
        lengths: int32 `[B, n]`, number of ids, end of sentence included.

    Example:
    >>> import numpy as np
    >>> from keras import ops
    >>> from t2t_relpos.decoding import greedy_search
    >>> step = lambda ids, state: (ops.log([[0.1, 0.7, 0.2]]), state)
    >>> result = greedy_search(step, {"none": np.zeros((1, 1))}, 1, 3)
    >>> [ops.convert_to_numpy(x).tolist() for x in (result.ids, result.lengths)]
    [[[[1, 0, 0]]], [[1]]]
    """

    ids: object
    scores: object
    lengths: object


def length_penalty(length, alpha):
    """Returns `((5 + length) / 6) ** alpha`.

    Args:
        length: number of ids, int, a scalar or a tensor of any shape.
        alpha: exponent. With 0, there is no penalty.

    Returns:
        float32, of the shape of `length`.

    Reference: Wu et al. 2016, equation 14.

    Example:
    >>> from t2t_relpos.decoding import length_penalty
    >>> float(length_penalty(7, alpha=1.0))
    2.0
    """
    return ((5.0 + ops.cast(length, "float32")) / 6.0) ** alpha


class TokenScores(NamedTuple):
    """Scores of given outputs.

    Attributes:
        token_scores: float32 `[B, T]`, log-probabilities, 0 for padding.
        scores: float32 `[B]`, their sums divided by the length penalty.
        lengths: int32 `[B]`, number of ids, end of sentence included.

    Example:
    >>> from keras import ops
    >>> from t2t_relpos.decoding import score_tokens
    >>> logits = ops.log([[[0.25, 0.25, 0.5], [0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]])
    >>> ops.convert_to_numpy(score_tokens(logits, [[2, 1, 0]]).lengths).tolist()
    [2]
    """

    token_scores: object
    scores: object
    lengths: object


def score_tokens(logits, ids, pad_id=0, alpha=0.0):
    """Returns the log-probabilities of ids.

    With the same `alpha`, `scores` are equal to those of `beam_search` without
    repetition penalty. Exception: an id that the model excludes, with a log-probability below -1e4,
    counts here, and does not count in the score of a search that had no other choice.

    Args:
        logits: `[B, T, V]`. `logits[:, t]` predict `ids[:, t]`.
        ids: int `[B, T]`, padded with `pad_id`.
        pad_id: id of padding, which is excluded from scores and lengths. Default: 0.
        alpha: exponent of the length penalty; 0 for none. Default: 0.0.

    Returns:
        `TokenScores`.

    Example:
    >>> from keras import ops
    >>> from t2t_relpos.decoding import score_tokens
    >>> logits = ops.log([[[0.25, 0.25, 0.5], [0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]])
    >>> scores = score_tokens(logits, [[2, 1, 0]])
    >>> ops.convert_to_numpy(ops.exp(scores.token_scores)).round(4).tolist()
    [[0.5, 0.5, 1.0]]
    >>> ops.convert_to_numpy(ops.exp(scores.scores)).round(4).tolist()
    [0.25]
    """
    ids = ops.cast(ids, "int32")
    log_probs = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
    token_scores = ops.take_along_axis(log_probs, ids[..., None], axis=-1)[..., 0]
    is_token = ids != pad_id
    token_scores = ops.where(is_token, token_scores, 0.0)
    lengths = ops.sum(ops.cast(is_token, "int32"), axis=-1)
    scores = ops.sum(token_scores, axis=-1) / length_penalty(lengths, alpha)
    return TokenScores(token_scores, scores, lengths)
