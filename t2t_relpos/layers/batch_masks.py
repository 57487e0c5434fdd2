"""Padding masks for functions that do not broadcast them over the batch."""

from keras import ops


def expand_to_batch(mask, x):
    """Returns a padding mask with the batch size of `x`, or None for None.

    Args:
        mask: `[B, ...]`, or `[1, ...]` for all batch entries.
        x: `[B, ...]`.
    """
    if mask is None or mask.shape[0] != 1 or x.shape[0] == 1:
        return mask
    mask = ops.convert_to_tensor(mask)
    return ops.broadcast_to(mask, (ops.shape(x)[0], *ops.shape(mask)[1:]))
