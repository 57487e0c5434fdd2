"""Search algorithms for any model with a step function."""

from t2t_relpos.decoding.beam_search import beam_search
from t2t_relpos.decoding.samplers import (
    BeamSampler,
    GreedySampler,
    Sampler,
    TopKSampler,
    TopPSampler,
)
from t2t_relpos.decoding.sampling import greedy_search, sample_search
from t2t_relpos.decoding.scores import (
    DecodingResult,
    TokenScores,
    length_penalty,
    score_tokens,
)

__all__ = [
    "BeamSampler",
    "DecodingResult",
    "GreedySampler",
    "Sampler",
    "TokenScores",
    "TopKSampler",
    "TopPSampler",
    "beam_search",
    "greedy_search",
    "length_penalty",
    "sample_search",
    "score_tokens",
]
