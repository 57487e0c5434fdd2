"""Keras layers, one per file."""

from t2t_relpos.layers.embeddings import (
    LearnedPositionEmbedding,
    SinusoidalPositionEncoding,
    TokenEmbedding,
)
from t2t_relpos.layers.feed_forward import FeedForward
from t2t_relpos.layers.local_relative_multi_head_attention import LocalRelativeMultiHeadAttention
from t2t_relpos.layers.packing import Packing
from t2t_relpos.layers.relation_multi_head_attention import RelationMultiHeadAttention
from t2t_relpos.layers.relative_multi_head_attention import RelativeMultiHeadAttention
from t2t_relpos.layers.relative_multi_head_attention_2d import RelativeMultiHeadAttention2D
from t2t_relpos.layers.relative_multi_head_attention_v2 import RelativeMultiHeadAttentionV2
from t2t_relpos.layers.relative_position_embedding import RelativePositionEmbedding
from t2t_relpos.layers.residual import Residual
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
