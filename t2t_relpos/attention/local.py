"""Attention restricted to a window around each query: cost grows with window times length.

Queries are cut into blocks; a block sees its own keys and those of its
neighbours. Blocks are then as good as batch entries, and `attend` does the
rest.
"""

from keras import ops

from t2t_relpos.attention.attend import attend
from t2t_relpos.attention.masks import causal_mask, combine_masks, window_mask


def attend_locally(
    query,
    key,
    value,
    key_table=None,
    value_table=None,
    *,
    window,
    causal=False,
    query_mask=None,
    key_mask=None,
    dropout=None,
):
    """What `attend` gives under `window_mask`, without looking at keys outside of the window.

    Self-attention: there are as many keys as queries. Memory and time are
    O(B·N·T·window).

    Args:
        query, key, value, key_table, value_table, dropout: as in `attend`, with
            S = T; `dropout` gets weights `[B * blocks, N, C, 2C or 3C]`.
        window: a query sees keys less than this far away.
        causal: whether keys after a query are hidden.
        query_mask: bool `[B, T]`, queries that exist, or None.
        key_mask: bool `[B, T]`, keys that exist, or None.

    Returns:
        outputs `[B, N, T, Hv]`.

    Reference: Vaswani et al. 2017, section 4 and Table 1, "self-attention
    (restricted)".

    Example:
    >>> import numpy as np
    >>> from keras import ops
    >>> from t2t_relpos.attention import attend, attend_locally, window_mask
    >>> x = np.random.default_rng(0).normal(size=(1, 2, 50, 4))
    >>> local = attend_locally(x, x, x, window=3)
    >>> dense, _ = attend(x, x, x, mask=window_mask(50, 50, 3))
    >>> bool(ops.max(ops.abs(local - dense)) < 1e-5)
    True
    """
    batch, _, length, _ = ops.shape(query)
    size = block_size(window)
    neighbours = (-1, 0) if causal else (-1, 0, 1)
    count = (length + size - 1) // size
    padding = count * size - length
    exists = ops.arange(count * size) < length

    def pairs_of(mask):
        """Bool `[B, T]` or None -> `[B, blocks * C]`, padding being False."""
        if mask is None:
            return ops.broadcast_to(exists, (batch, count * size))
        return ops.pad(ops.cast(mask, "bool"), [[0, 0], [0, padding]])

    keys_exist = _windows(pairs_of(key_mask)[:, None, :, None], count, size, neighbours)
    mask = combine_masks(
        ops.swapaxes(keys_exist, -1, -2),
        window_mask(size, len(neighbours) * size, window, size),
        causal_mask(size, len(neighbours) * size, size) if causal else None,
        None
        if query_mask is None
        else _blocks(pairs_of(query_mask)[:, None, :, None], count, size),
    )
    pad = [[0, 0], [0, 0], [0, padding], [0, 0]]
    outputs, _ = attend(
        _blocks(ops.pad(query, pad), count, size),
        _windows(ops.pad(key, pad), count, size, neighbours),
        _windows(ops.pad(value, pad), count, size, neighbours),
        key_table,
        value_table,
        mask=mask,
        query_offset=size,
        dropout=dropout,
        return_weights=False,
    )
    return _unblocked(outputs, batch, count)[:, :, :length]


def block_size(window):
    """C: the reach of the window, but not so few positions that products get tiny."""
    return max(window - 1, 16)


def _blocks(x, count, size):
    """`[B, N, blocks * C, X]` -> `[B * blocks, N, C, X]`."""
    batch, heads, _, depth = ops.shape(x)
    x = ops.reshape(x, (batch, heads, count, size, depth))
    return ops.reshape(ops.swapaxes(x, 1, 2), (batch * count, heads, size, depth))


def _windows(x, count, size, neighbours):
    """`[B, N, blocks * C, X]` -> `[B * blocks, N, len(neighbours) * C, X]`; zeros beyond the ends."""
    x = ops.pad(x, [[0, 0], [0, 0], [size, size], [0, 0]])
    length = count * size
    parts = [
        _blocks(x[:, :, (1 + n) * size : (1 + n) * size + length], count, size) for n in neighbours
    ]
    return ops.concatenate(parts, axis=2)


def _unblocked(x, batch, count):
    """Inverse of `_blocks`."""
    _, heads, size, depth = ops.shape(x)
    x = ops.swapaxes(ops.reshape(x, (batch, count, heads, size, depth)), 1, 2)
    return ops.reshape(x, (batch, heads, count * size, depth))
