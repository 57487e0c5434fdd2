"""Inference with a Transformer whose weights are folded, so that it needs fewer operations."""

from t2t_relpos.models.folded.fold_weights import can_fold, fold_weights, is_own
from t2t_relpos.models.folded.transformer import FoldedTransformer

__all__ = [
    "FoldedTransformer",
    "can_fold",
    "fold_weights",
    "is_own",
]
