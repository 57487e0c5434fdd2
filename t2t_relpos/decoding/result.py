"""The result of a search."""

from typing import NamedTuple

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
