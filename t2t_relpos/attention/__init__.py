"""Attention with relative positions as functions of tensors."""

import t2t_relpos.backend  # Reports a missing backend of Keras.
from t2t_relpos.attention.attend import attend
from t2t_relpos.attention.explain import explain
from t2t_relpos.attention.masks import (
    causal_mask,
    combine_masks,
    key_padding_mask,
    make_attention_mask,
    masked_softmax,
    window_mask,
)
from t2t_relpos.attention.reference import (
    dot_product_attention_relative,
    relative_attention_inner,
    relative_positions_matrix,
)
from t2t_relpos.attention.relative_ids import (
    key_positions,
    relative_ids,
    relative_ids_from_positions,
)
from t2t_relpos.backend.keras_ops import portable

__all__ = [
    "attend",
    "causal_mask",
    "combine_masks",
    "dot_product_attention_relative",
    "explain",
    "key_padding_mask",
    "key_positions",
    "make_attention_mask",
    "masked_softmax",
    "portable",
    "relative_attention_inner",
    "relative_ids",
    "relative_ids_from_positions",
    "relative_positions_matrix",
    "window_mask",
]
