"""Attention with relative positions as functions of tensors."""

from t2t_relpos.attention.attend import attend
from t2t_relpos.attention.labels import key_positions, position_labels, relative_labels
from t2t_relpos.attention.local import attend_locally
from t2t_relpos.attention.masks import (
    attention_mask_of,
    causal_mask,
    combine_masks,
    key_padding_mask,
    masked_softmax,
    window_mask,
)
from t2t_relpos.attention.reference import (
    dot_product_attention_relative,
    relative_attention_inner,
    relative_positions_matrix,
)
