"""Fixtures: small Transformers with all position encodings and tables."""

import keras
import pytest

from t2t_relpos.models import Transformer, TransformerConfig

SMALL = {
    "vocab_size": 23,
    "num_encoder_layers": 2,
    "num_decoder_layers": 3,
    "hidden_dim": 14,
    "intermediate_dim": 11,
    "num_heads": 2,
    "max_relative_position": 3,
    "max_length": 19,
}
VARIANTS = {
    "shared tables": {},
    "tables per head": {"share_heads": False},
    "relative cross-attention": {"relative_cross_attention": True, "share_heads": False},
    "K = 0": {"max_relative_position": 0},
    "K above length": {"max_relative_position": 17},
    "a^K only": {"use_value_table": False},
    "a^V only": {"use_key_table": False},
    "no tables": {"use_key_table": False, "use_value_table": False},
    "sinusoidal": {"position": "sinusoidal"},
    "learned": {"position": "learned"},
    "relative and sinusoidal": {"position": "relative+sinusoidal"},
    "no positions": {"position": "none"},
    "post-norm, untied, target space": {
        "normalize_first": False,
        "tie_embeddings": False,
        "target_space_id": 7,
    },
}


@pytest.fixture(scope="session")
def make_transformer():
    """`make_transformer(variant)` returns a Transformer with clearly non-uniform attention."""

    def make(variant):
        keras.utils.set_random_seed(20180403)
        transformer = Transformer(TransformerConfig(**SMALL | VARIANTS[variant]))
        for variable in transformer.trainable_variables:
            if len(variable.shape) > 1:
                variable.assign(1.5 * variable)
        return transformer

    return make


@pytest.fixture(params=VARIANTS)
def transformer(request, make_transformer):
    """A Transformer of every variant."""
    return make_transformer(request.param)
