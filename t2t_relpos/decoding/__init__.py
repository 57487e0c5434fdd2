"""Searches that know no model."""

from t2t_relpos.decoding.beam_search import beam_search, length_penalty
from t2t_relpos.decoding.greedy_search import greedy_search
from t2t_relpos.decoding.result import DecodingResult
