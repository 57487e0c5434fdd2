"""The result of a search."""

from typing import NamedTuple


class DecodingResult(NamedTuple):
    """Outputs of a search, best first; with `sample_search` in the order drawn.

    Attributes:
        ids: int32 `[B, n, L]`, end of sentence included, then padded with 0.
        scores: float32 `[B, n]`, higher is better.
        lengths: int32 `[B, n]`, number of ids, end of sentence included.
    """

    ids: object
    scores: object
    lengths: object
