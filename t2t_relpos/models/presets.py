"""The presets: architectures by name, as dicts of `TransformerConfig` fields.

Those with names of tensor2tensor's hparams sets have their sizes, without the target space
embedding. `shaw_*` are those of Shaw et al. 2018, section 4.1. Settings that the paper does not
specify (position of the normalization, tied embeddings, attention dropout) are from tensor2tensor's
transformer_base_v1 and transformer_big. Training recipes are in the trainer.

Example:
>>> from t2t_relpos.models import PRESETS
>>> PRESETS["tiny"]["hidden_dim"], PRESETS["shaw_base"]["max_relative_position"]
(128, 16)
"""

from t2t_relpos.hparams_sets import PRESET_SETS, parse_hparams

_FIELDS = {
    "num_encoder_layers": "num_hidden_layers",
    "num_decoder_layers": "num_hidden_layers",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "filter_size",
    "num_heads": "num_heads",
    "tie_embeddings": "shared_embedding_and_softmax_weights",
    "dropout": "layer_prepostprocess_dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "relu_dropout",
}


def _architecture(name):
    """Returns the fields of `TransformerConfig` that an hparams set describes."""
    hparams = parse_hparams(name)
    settings = {field: hparams[key] for field, key in _FIELDS.items()}
    settings["normalize_first"] = hparams["layer_preprocess_sequence"] == "n"
    settings["position"] = "sinusoidal"
    if hparams["self_attention_type"] == "dot_product_relative":
        settings["position"] = "relative"
        settings["max_relative_position"] = hparams["max_relative_position"]
        settings["share_heads"] = True
    return settings


PRESETS = {
    "shaw_base": {
        **_architecture("transformer_base_v1"),
        "intermediate_dim": 1024,
        "position": "relative",
        "max_relative_position": 16,
        "share_heads": False,
    },
    "shaw_big": {
        **_architecture("transformer_big"),
        "position": "relative",
        "max_relative_position": 8,
        "share_heads": True,
    },
    **{name: _architecture(name) for name in PRESET_SETS},
    "tiny": {
        **_architecture("transformer_base"),
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
