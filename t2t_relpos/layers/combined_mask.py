"""The mask of an attention sublayer from a padding mask and a mask of pairs."""

from keras import ops

from t2t_relpos.attention.masks import combine_masks
from t2t_relpos.layers import call_checks


def combined_mask(query, key, masks, *, prefix="", key_length=None, packed=False):
    """Returns the conjunction of a padding mask `[B, S]` and a mask `[B, T, S]`, or None.

    Args:
        query: `[B, T, D]`.
        key: `[B, S, D]`. The padding mask defaults to the mask that Keras attached to it.
        masks: (padding mask, mask of pairs), each a tensor or None.
        prefix: of the names of the arguments in errors.
        key_length: S, if it is not the length of `key`.
        packed: whether the sequences are packed. B, T and S are then unknown.

    Raises:
        ValueError: if a mask has another dtype or shape.
    """
    padding_mask, attention_mask = masks
    if padding_mask is None:
        padding_mask = getattr(key, "_keras_mask", None)
    batch, length_q = (None, None) if packed else query.shape[:2]
    length_k = None if packed else key_length or key.shape[1]
    call_checks.mask(f"{prefix}padding_mask", padding_mask, ("[B, S]", (batch, length_k)))
    sizes = (batch, length_q, length_k)
    call_checks.pair_mask(f"{prefix}attention_mask", attention_mask, sizes)
    if padding_mask is not None:
        padding_mask = ops.expand_dims(padding_mask, 1)
    return combine_masks(padding_mask, attention_mask)
