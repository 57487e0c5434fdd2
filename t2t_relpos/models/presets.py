"""Architectures by name. Training recipes are in the trainer.

`shaw_*` are those of Shaw et al. 2018, section 4.1. Settings that the paper does not specify
(position of the normalization, tied embeddings, attention dropout) are from tensor2tensor's
transformer_base_v1 and transformer_big. The others except `tiny` are tensor2tensor's hparams sets
of the same names.
"""

_BASE = {
    "num_encoder_layers": 6,
    "num_decoder_layers": 6,
    "hidden_dim": 512,
    "intermediate_dim": 2048,
    "num_heads": 8,
    "position": "sinusoidal",
    "normalize_first": True,
    "tie_embeddings": True,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation_dropout": 0.1,
}
_TINY = {
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "hidden_dim": 128,
    "intermediate_dim": 512,
    "num_heads": 4,
}
_BIG = {
    "hidden_dim": 1024,
    "intermediate_dim": 4096,
    "num_heads": 16,
    "dropout": 0.3,
}
_RELATIVE = {"position": "relative", "max_relative_position": 20, "share_heads": True}
# transformer_base_v1: post-norm, dropout of sublayer outputs only.
_V1 = {"normalize_first": False, "attention_dropout": 0.0, "activation_dropout": 0.0}

PRESETS = {
    "shaw_base": {
        **_BASE,
        **_V1,
        "intermediate_dim": 1024,
        "position": "relative",
        "max_relative_position": 16,
        "share_heads": False,
    },
    "shaw_big": {
        **_BASE,
        **_BIG,
        "position": "relative",
        "max_relative_position": 8,
        "share_heads": True,
    },
    "transformer_base": _BASE,
    "transformer_base_v1": {**_BASE, **_V1},
    "transformer_big": {**_BASE, **_BIG},
    "transformer_tiny": {**_BASE, **_TINY},
    "transformer_relative": {**_BASE, **_RELATIVE},
    "transformer_relative_tiny": {**_BASE, **_TINY, **_RELATIVE},
    "transformer_relative_big": {**_BASE, **_BIG, **_RELATIVE},
    "tiny": {
        **_BASE,
        "num_encoder_layers": 4,
        "num_decoder_layers": 4,
        "hidden_dim": 128,
        "intermediate_dim": 256,
        "num_heads": 4,
        "position": "relative",
        "max_relative_position": 16,
        "share_heads": True,
        "dropout": 0.3,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
    },
}
"""Architectures by name, as dicts of `TransformerConfig` fields.

Example:
>>> from t2t_relpos.models import PRESETS
>>> PRESETS["tiny"]["hidden_dim"], PRESETS["shaw_base"]["max_relative_position"]
(128, 16)
"""
