"""The mask of an attention sublayer of a block."""

from keras import ops

from t2t_relpos._keras_compat import attached_mask
from t2t_relpos.attention.masks import combine_masks
from t2t_relpos.layers import call_checks


def block_mask(query, key, masks, *, prefix="", key_length=None, packed=False):
    """Returns the conjunction of a padding mask and an attention mask, or None without masks.

    Args:
        query: `[B, T, D]`.
        key: `[B, S, D]`. Without a cache, the padding mask defaults to the mask that Keras attached
            to it.
        masks: (padding mask `[B, S]`, attention mask `[B, T, S]` or `[T, S]`), each a tensor or
            None.
        prefix: prefix of the argument names in error messages.
        key_length: S, the length of the cache that has the keys. Default: None, no cache.
        packed: whether the sequences are packed. B, T and S are then unknown.

    Raises:
        ValueError: if a mask has an unsupported dtype or shape.
    """
    padding_mask, attention_mask = masks
    # The mask attached to the inputs does not cover all positions of a cache.
    if padding_mask is None and key_length is None:
        padding_mask = attached_mask(key)
    batch, length_q = (None, None) if packed else query.shape[:2]
    length_k = None if packed else key_length or key.shape[1]
    call_checks.padding_mask(f"{prefix}padding_mask", padding_mask, "[B, S]", (batch, length_k))
    sizes = (batch, length_q, length_k)
    call_checks.pair_mask(f"{prefix}attention_mask", attention_mask, sizes)
    if padding_mask is not None:
        padding_mask = ops.expand_dims(padding_mask, 1)
    return combine_masks(padding_mask, attention_mask)


def replace_attached_mask(x, padding_mask, *names):
    """Returns the mask arguments that make a sublayer use a mask instead of that attached to `x`.

    Without these arguments, Keras would pass the attached mask too.

    Args:
        x: `[B, S, D]`, an input of the sublayer.
        padding_mask: the explicit mask `[B, S]`, or None.
        *names: names of the sublayer's arguments for the mask of `x`.
    """
    if padding_mask is None or attached_mask(x) is None:
        return {}
    return dict.fromkeys(names, padding_mask)
