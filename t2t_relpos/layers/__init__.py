"""Keras layers: attention, Transformer blocks and their parts."""

import t2t_relpos.backend  # Reports a missing backend of Keras.
from t2t_relpos.layers.embeddings import (
    LearnedPositionEmbedding,
    SinusoidalPositionEncoding,
    TokenEmbedding,
)
from t2t_relpos.layers.feed_forward import FeedForward
from t2t_relpos.layers.packing import Packing
from t2t_relpos.layers.relation_multi_head_attention import RelationMultiHeadAttention
from t2t_relpos.layers.relative_multi_head_attention import RelativeMultiHeadAttention
from t2t_relpos.layers.relative_position_embedding import RelativePositionEmbedding
from t2t_relpos.layers.residual import Residual
from t2t_relpos.layers.t2t_variants import (
    LocalRelativeMultiHeadAttention,
    RelativeMultiHeadAttention2D,
    RelativeMultiHeadAttentionV2,
)
from t2t_relpos.layers.transformer_decoder import TransformerDecoder
from t2t_relpos.layers.transformer_encoder import TransformerEncoder

__all__ = [
    "FeedForward",
    "LearnedPositionEmbedding",
    "LocalRelativeMultiHeadAttention",
    "Packing",
    "RelationMultiHeadAttention",
    "RelativeMultiHeadAttention",
    "RelativeMultiHeadAttention2D",
    "RelativeMultiHeadAttentionV2",
    "RelativePositionEmbedding",
    "Residual",
    "SinusoidalPositionEncoding",
    "TokenEmbedding",
    "TransformerDecoder",
    "TransformerEncoder",
]
