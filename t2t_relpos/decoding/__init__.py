"""Search algorithms for any model with a step function."""

from t2t_relpos.decoding.beam_search import beam_search
from t2t_relpos.decoding.greedy_search import greedy_search
from t2t_relpos.decoding.length_penalty import length_penalty
from t2t_relpos.decoding.result import DecodingResult
from t2t_relpos.decoding.sample_search import sample_search
from t2t_relpos.decoding.samplers import (
    BeamSampler,
    GreedySampler,
    Sampler,
    TopKSampler,
    TopPSampler,
)
from t2t_relpos.decoding.score_tokens import TokenScores, score_tokens

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
