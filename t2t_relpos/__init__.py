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

attend: attention as a function of queries, keys, values and tables.

Functions, literal ports of tensor2tensor's:
    dot_product_attention_relative, relative_attention_inner, relative_positions_matrix.

Subpackages: attention (functions of tensors), layers, models, decoding (searches and samplers),
t2t (tensor2tensor's hparams and checkpoints), integrations (modules of PyTorch).

Names are imported when they are used, so that `integrations` can choose the backend of Keras. Keras
loads saved models only if the classes of their layers are imported: `import t2t_relpos` imports
them if Keras is imported before. Otherwise, `import t2t_relpos.models`.
"""

import importlib
import sys
from typing import TYPE_CHECKING

__version__ = "1.0.0rc1"

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
    "attend",
    "dot_product_attention_relative",
    "relative_attention_inner",
    "relative_positions_matrix",
]

_SUBPACKAGES = "attention", "backend", "decoding", "integrations", "layers", "models", "t2t"

if TYPE_CHECKING:
    from t2t_relpos.attention import (
        attend,
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


def __getattr__(name):
    """Imports a subpackage, or the one that defines a public name, when it is used."""
    if name in _SUBPACKAGES:
        return importlib.import_module(f"t2t_relpos.{name}")
    if name in __all__:
        for package in ("attention", "layers", "models"):
            module = importlib.import_module(f"t2t_relpos.{package}")
            if name in module.__all__:
                globals()[name] = getattr(module, name)
                return globals()[name]
    raise AttributeError(f"module 't2t_relpos' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__, *_SUBPACKAGES})


if "keras" in sys.modules:
    # `keras.saving.load_model` finds registered classes only.
    importlib.import_module("t2t_relpos.models")
