"""Search algorithms for any model with a step function."""

import t2t_relpos.backend  # Reports a missing backend of Keras.
from t2t_relpos.decoding.beam_search import (
    TokenScores,
    beam_search,
    length_penalty,
    score_tokens,
)
from t2t_relpos.decoding.sample_search import greedy_search, sample_search
from t2t_relpos.decoding.samplers import (
    BeamSampler,
    GreedySampler,
    Sampler,
    TopKSampler,
    TopPSampler,
)
from t2t_relpos.decoding.search import DecodingResult

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
