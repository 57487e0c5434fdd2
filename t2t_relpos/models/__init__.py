"""Models that consist of the layers."""

import t2t_relpos.backend  # Reports a missing backend of Keras.
from t2t_relpos.models.causal_lm import CausalLM
from t2t_relpos.models.config import TransformerConfig
from t2t_relpos.models.presets import PRESETS
from t2t_relpos.models.transformer import Transformer

__all__ = [
    "CausalLM",
    "PRESETS",
    "Transformer",
    "TransformerConfig",
]
