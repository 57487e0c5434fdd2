"""Attention with relative positions (Shaw, Uszkoreit and Vaswani 2018) for Keras 3."""

from t2t_relpos.attention import (
    dot_product_attention_relative,
    relative_attention_inner,
    relative_positions_matrix,
)
from t2t_relpos.layers import (
    LocalRelativeMultiHeadAttention,
    RelationMultiHeadAttention,
    RelativeMultiHeadAttention,
    RelativeMultiHeadAttention2D,
    RelativeMultiHeadAttentionV2,
    RelativePositionEmbedding,
    TransformerDecoder,
    TransformerEncoder,
)
from t2t_relpos.models import PRESETS, CausalLM, Transformer, TransformerConfig

__version__ = "0.1.0"
