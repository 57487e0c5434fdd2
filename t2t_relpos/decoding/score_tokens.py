"""Log-probabilities of given ids."""

from typing import NamedTuple

from keras import ops

from t2t_relpos.decoding.length_penalty import length_penalty


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
