"""Attention restricted to a window around each query. Cost grows with window times length.

Queries are split into blocks. A block attends to its own keys and those of its neighbours. Blocks
become batch entries of `attend`.
"""

from keras import ops

from t2t_relpos import _checks
from t2t_relpos._backend import arange, as_tensors, is_portable
from t2t_relpos.attention.attend import attend
from t2t_relpos.attention.masks import causal_mask, combine_masks, expand_to_batch, window_mask

# Products with smaller blocks are inefficient.
SMALLEST_BLOCK = 16


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
    """Returns the outputs of `attend` with `window_mask`, computed within blocks.

    The function is for self-attention, S = T. Memory and time are O(B·N·T·window).

    Args:
        query: as in `attend`.
        key: as in `attend`, with S = T.
        value: as in `attend`, with S = T.
        key_table: as in `attend`. Default: None.
        value_table: as in `attend`. Default: None.
        window: a query attends to keys at distances less than this.
        causal: whether keys after a query are masked. Default: False.
        query_mask: bool `[B, T]`. Queries that are False get zeros. Default: None, all True.
        key_mask: bool `[B, T]`; True = attend. Default: None, all True.
        dropout: as in `attend`; receives weights `[B * blocks, N, C, 2C or 3C]`. Default: None.

    Returns:
        outputs `[B, N, T, Hv]`.

    Raises:
        ValueError: if S is not T, `window` is not a positive integer, or a mask is of a float
            dtype.

    Reference: Vaswani et al. 2017, section 4 and Table 1, "self-attention (restricted)".

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
    _checks.positive_int(window, "window")
    query, key, value, key_table, value_table = as_tensors(
        query, key, value, key_table, value_table
    )
    advice = "The function is for self-attention. Use `attend` with `mask=window_mask(...)`."
    _checks.check_shape(key.shape, "key", "B N T H", {"T": query.shape[2]}, advice=advice)
    _checks.boolean(query_mask, "query_mask")
    _checks.boolean(key_mask, "key_mask")
    query_mask, key_mask = (expand_to_batch(mask, query) for mask in (query_mask, key_mask))
    batch, _, length, _ = ops.shape(query)
    if is_portable():
        # Some converters do not support a number of blocks that depends on the length.
        mask = window_mask(length, length, window)
        masks = {"mask": mask, "query_mask": query_mask, "key_mask": key_mask, "causal": causal}
        tables = key_table, value_table
        options = {"dropout": dropout, "return_weights": False}
        return attend(query, key, value, *tables, **masks, **options)[0]
    size = block_size(window)
    neighbours = (-1, 0) if causal else (-1, 0, 1)
    count = (length + size - 1) // size
    mask = _block_mask((batch, length), window, causal, query_mask, key_mask)
    pad = [[0, 0], [0, 0], [0, count * size - length], [0, 0]]
    outputs, _ = attend(
        split_blocks(ops.pad(query, pad), count, size),
        join_neighbours(ops.pad(key, pad), count, size, neighbours),
        join_neighbours(ops.pad(value, pad), count, size, neighbours),
        key_table,
        value_table,
        mask=mask,
        query_offset=size,
        dropout=dropout,
        return_weights=False,
    )
    return join_blocks(outputs, batch, count)[:, :, :length]


def _block_mask(shape, window, causal, query_mask, key_mask):
    """Returns the mask of the pairs in all blocks, bool `[B * blocks, 1, C, 2C or 3C]`.

    Args:
        shape: (B, T).
        window: as in `attend_locally`.
        causal: as in `attend_locally`.
        query_mask: as in `attend_locally`.
        key_mask: as in `attend_locally`.
    """
    _, length = shape
    size = block_size(window)
    neighbours = (-1, 0) if causal else (-1, 0, 1)
    count = (length + size - 1) // size
    key_exists = _pad_mask(key_mask, shape, count * size)
    key_exists = join_neighbours(key_exists, count, size, neighbours)
    query_exists = None
    if query_mask is not None:
        query_exists = split_blocks(_pad_mask(query_mask, shape, count * size), count, size)
    return combine_masks(
        ops.swapaxes(key_exists, -1, -2),
        window_mask(size, len(neighbours) * size, window, size),
        causal_mask(size, len(neighbours) * size, size) if causal else None,
        query_exists,
    )


def _pad_mask(mask, shape, padded_length):
    """Returns a mask `[B, T]` or None as bool `[B, 1, padded_length, 1]`. Padding is False."""
    batch, length = shape
    if mask is None:
        mask = ops.broadcast_to(arange(padded_length) < length, (batch, padded_length))
    else:
        mask = ops.pad(ops.cast(mask, "bool"), [[0, 0], [0, padded_length - length]])
    return ops.expand_dims(mask, (1, 3))


def block_size(window):
    """Returns the block length C, which is at least `window - 1`."""
    return max(window - 1, SMALLEST_BLOCK)


def split_blocks(x, count, size):
    """Splits a sequence into blocks, `[B, N, blocks * C, X]` -> `[B * blocks, N, C, X]`."""
    batch, heads, _, depth = ops.shape(x)
    x = ops.reshape(x, (batch, heads, count, size, depth))
    return ops.reshape(ops.swapaxes(x, 1, 2), (batch * count, heads, size, depth))


def join_neighbours(x, count, size, neighbours):
    """Splits a sequence into blocks and joins each with its neighbours, zeros beyond the ends.

    `[B, N, blocks * C, X]` -> `[B * blocks, N, len(neighbours) * C, X]`.
    """
    x = ops.pad(x, [[0, 0], [0, 0], [size, size], [0, 0]])
    length = count * size
    parts = [
        split_blocks(x[:, :, (1 + n) * size : (1 + n) * size + length], count, size)
        for n in neighbours
    ]
    return ops.concatenate(parts, axis=2)


def join_blocks(x, batch, count):
    """Joins blocks to sequences: the inverse of `split_blocks`."""
    _, heads, size, depth = ops.shape(x)
    x = ops.swapaxes(ops.reshape(x, (batch, count, heads, size, depth)), 1, 2)
    return ops.reshape(x, (batch, heads, count * size, depth))
