"""Attention with relative positions (Shaw, Uszkoreit and Vaswani 2018) for Keras 3.

Layers:
    RelativeMultiHeadAttention: multi-head attention with relative positions.
    TransformerEncoder, TransformerDecoder: Transformer blocks with relative positions.
    RelationMultiHeadAttention: multi-head attention with edge labels or edge vectors.
    RelativeMultiHeadAttentionV2, RelativeMultiHeadAttention2D, LocalRelativeMultiHeadAttention:
        tensor2tensor's other relative attentions.
    RelativePositionEmbedding: a table of vectors by clipped relative position.

Models:
    Transformer, TransformerConfig, PRESETS: an encoder-decoder Transformer.
    CausalLM: a decoder-only language model.

Functions, literal ports of tensor2tensor's:
    dot_product_attention_relative, relative_attention_inner, relative_positions_matrix.

Subpackages: attention (functions of tensors), layers, models, decoding (searches and samplers),
t2t (tensor2tensor's hparams and checkpoints).
"""

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

__version__ = "0.3.0"

__all__ = [
    "CausalLM",
    "LocalRelativeMultiHeadAttention",
    "PRESETS",
    "RelationMultiHeadAttention",
    "RelativeMultiHeadAttention",
    "RelativeMultiHeadAttention2D",
    "RelativeMultiHeadAttentionV2",
    "RelativePositionEmbedding",
    "Transformer",
    "TransformerConfig",
    "TransformerDecoder",
    "TransformerEncoder",
    "dot_product_attention_relative",
    "relative_attention_inner",
    "relative_positions_matrix",
]
