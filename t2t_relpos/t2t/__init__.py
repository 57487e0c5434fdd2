"""Imports models of tensor2tensor: parses hparams and converts variables to weights."""

import t2t_relpos.backend  # Reports a missing backend of Keras.
from t2t_relpos.hparams_sets import SETS, parse_hparams
from t2t_relpos.t2t.checkpoint import decode_eighth_power, load_t2t_weights, t2t_weights
from t2t_relpos.t2t.hparams import config_from_hparams
from t2t_relpos.t2t.weight_names import is_language_model

__all__ = [
    "SETS",
    "config_from_hparams",
    "decode_eighth_power",
    "is_language_model",
    "load_t2t_weights",
    "parse_hparams",
    "t2t_weights",
]
