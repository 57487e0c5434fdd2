"""The result of a search."""

from typing import NamedTuple


class DecodingResult(NamedTuple):
    """Outputs of a search, best first; with `sample_search` in the order drawn.

    If a beam search has at least one, but fewer than n finished outputs of a sentence at its limit,
    the last entries have no output: padding only, length 0 and a score near -1e7.

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
