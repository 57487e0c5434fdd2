"""Small Transformers."""

import numpy as np
from keras import ops

from t2t_relpos.models import Transformer, TransformerConfig


def small_config(**settings):
    """Returns the configuration of a small Transformer without dropout, with changed settings."""
    sizes = {
        "vocab_size": 13,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "hidden_dim": 6,
        "intermediate_dim": 7,
        "num_heads": 3,
        "max_relative_position": 3,
        "max_length": 11,
        "dropout": 0.0,
    }
    return TransformerConfig(**sizes | settings)


def random_transformer(scale, **settings):
    """Returns a small Transformer with random weights, including gains, offsets and biases."""
    model = Transformer(small_config(**settings))
    rng = np.random.default_rng(7)
    for weight in model.weights:
        if "seed" not in weight.path:
            noise = scale * rng.normal(size=weight.shape)
            weight.assign(ops.convert_to_numpy(weight) + noise)
    return model
