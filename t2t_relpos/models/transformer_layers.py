"""The layers of a `Transformer`, made from its config and dtype policy."""

from t2t_relpos.layers.embeddings import (
    LearnedPositionEmbedding,
    SinusoidalPositionEncoding,
    TokenEmbedding,
)
from t2t_relpos.layers.residual import LayerNormalization
from t2t_relpos.layers.transformer_decoder import TransformerDecoder
from t2t_relpos.layers.transformer_encoder import TransformerEncoder


def embeddings(config, policy, names):
    """Returns a token embedding per name, or the same one for all if the config ties them."""
    sizes = (config.vocab_size, config.hidden_dim)
    if config.tie_embeddings:
        return [TokenEmbedding(*sizes, dtype=policy, name="embedding")] * len(names)
    return [TokenEmbedding(*sizes, dtype=policy, name=name) for name in names]


def position(config, policy, name):
    """Returns the layer that adds positions to embeddings, or None if the config has none."""
    if config.position == "learned":
        return LearnedPositionEmbedding(config.max_length, dtype=policy, name=name)
    if config.position.endswith("sinusoidal"):
        return SinusoidalPositionEncoding(dtype=policy, name=name)
    return None


def encoder(config, policy):
    """Returns the blocks of the encoder."""
    return [
        TransformerEncoder(**_arguments(config), dtype=policy, name=f"encoder_{i}")
        for i in range(config.num_encoder_layers)
    ]


def decoder(config, policy):
    """Returns the blocks of the decoder."""
    arguments = _arguments(config) | {"relative_cross_attention": config.relative_cross_attention}
    return [
        TransformerDecoder(**arguments, dtype=policy, name=f"decoder_{i}")
        for i in range(config.num_decoder_layers)
    ]


def final_norm(config, policy, name):
    """Returns the normalization after the last block, or None with post-norm."""
    if not config.normalize_first:
        return None
    return LayerNormalization(epsilon=config.layer_norm_epsilon, dtype=policy, name=name)


def _arguments(config):
    names = (
        "intermediate_dim num_heads share_heads normalize_first dropout attention_dropout "
        "activation_dropout layer_norm_epsilon"
    )
    return {name: getattr(config, name) for name in names.split()} | {
        "use_bias": False,
        "max_relative_position": config.max_relative_position if config.relative else None,
        "use_key_table": config.relative and config.use_key_table,
        "use_value_table": config.relative and config.use_value_table,
    }
