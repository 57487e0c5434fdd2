"""Causal attention to a query's own block and the one before, with relative positions."""

from keras import ops

from t2t_relpos.attention.attend import relative_scores, relative_values
from t2t_relpos.attention.masks import causal_mask, masked_softmax
from t2t_relpos.attention.zero_beyond import left_sided_table


def attend_two_blocks(
    query,
    key,
    value,
    key_table,
    value_table=None,
    *,
    block_length,
    key_mask=None,
    dropout=None,
):
    """Attention to positions not after the query, in its block and the one before it.

    The sequence is cut into blocks; time and memory grow with its length, not
    the length squared. Scores are not scaled: scale `query`. As in
    tensor2tensor, `value_table` has no effect on queries of the first block,
    nor on any of a sequence shorter than two blocks.

    Args:
        query: `[B, N, T, H]`.
        key: `[B, N, T, H]`.
        value: `[B, N, T, Hv]`.
        key_table: rows for distances from `-(R - 1)` to 0, `[R, H]` for all
            heads or `[N, R, H]`, with R at least twice `block_length`.
        value_table: likewise with Hv, or None.
        block_length: b, an int.
        key_mask: bool `[B, T]`, True = a key that exists. None: all.
        dropout: a function of the weights, or None.

    Returns:
        outputs `[B, N, T, Hv]`.

    Reference: t2t `masked_relative_local_attention_1d`.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.attention.two_blocks import attend_two_blocks
    >>> x = np.ones((1, 2, 7, 4), "float32")
    >>> tuple(attend_two_blocks(x, x, x, np.ones((12, 4), "float32"), block_length=3).shape)
    (1, 2, 7, 4)
    """
    batch, _, length, _ = ops.shape(query)
    num_blocks = (length + block_length - 1) // block_length
    queries = _blocks(query, num_blocks, block_length)
    keys = _blocks_with_previous(key, num_blocks, block_length)
    values = _blocks_with_previous(value, num_blocks, block_length)
    scores = ops.matmul(queries, ops.swapaxes(keys, -1, -2))
    scores = scores + relative_scores(
        queries, _reached(key_table, block_length), 2 * block_length, block_length
    )
    mask = _mask(batch, length, num_blocks, block_length, key_mask)
    weights = masked_softmax(scores, mask)
    kept = weights if dropout is None else dropout(weights)
    outputs = ops.matmul(kept, values)
    if value_table is not None:
        relative = relative_values(kept, _reached(value_table, block_length), block_length)
        has_values = ops.arange(num_blocks, dtype="int32") > 0
        # As a tensor: JAX can't compare lengths that it does not know yet.
        is_long = ops.convert_to_tensor(length, dtype="int32") >= 2 * block_length
        has_values = ops.logical_and(has_values, is_long)
        has_values = ops.tile(ops.cast(has_values, relative.dtype), [batch])
        outputs = outputs + relative * has_values[:, None, None, None]
    return _join_blocks(outputs, batch, num_blocks, block_length)[:, :, :length]


def _reached(table, block_length):
    """What two blocks reach of a table, by clipped distance."""
    return left_sided_table(table[..., -2 * block_length :, :])


def _blocks(x, num_blocks, block_length):
    """`[B, N, T, X]` -> `[B * blocks, N, b, X]`, the last block filled up with zeros."""
    batch, heads, length, depth = ops.shape(x)
    x = _with_zeros(x, 0, num_blocks * block_length - length)
    x = ops.reshape(x, (batch, heads, num_blocks, block_length, depth))
    x = ops.transpose(x, (0, 2, 1, 3, 4))
    return ops.reshape(x, (batch * num_blocks, heads, block_length, depth))


def _blocks_with_previous(x, num_blocks, block_length):
    """`[B, N, T, X]` -> `[B * blocks, N, 2b, X]`; zeros stand before the first block."""
    earlier = _with_zeros(x, block_length, 0)[:, :, : num_blocks * block_length]
    both = [_blocks(part, num_blocks, block_length) for part in (earlier, x)]
    return ops.concatenate(both, axis=2)


def _with_zeros(x, before, after):
    """Zeros before and after the positions of `[B, N, T, X]`; lengths may be tensors."""
    batch, heads, _, depth = ops.shape(x)
    start, end = (ops.zeros((batch, heads, n, depth), dtype=x.dtype) for n in (before, after))
    return ops.concatenate([start, x, end], axis=2)


def _join_blocks(x, batch, num_blocks, block_length):
    """`[B * blocks, N, b, X]` -> `[B, N, blocks * b, X]`."""
    _, heads, _, depth = ops.shape(x)
    x = ops.reshape(x, (batch, num_blocks, heads, block_length, depth))
    x = ops.transpose(x, (0, 2, 1, 3, 4))
    return ops.reshape(x, (batch, heads, num_blocks * block_length, depth))


def _mask(batch, length, num_blocks, block_length, key_mask):
    """Bool `[B * blocks, 1, b, 2b]`: keys that exist and do not lie after the query."""
    if key_mask is None:
        key_mask = ops.ones((batch, length), dtype="bool")
    # As a tensor of one head and one number per key, cut as keys are; what is filled up is 0.
    exists = ops.cast(key_mask, "int32")[:, None, :, None]
    exists = _blocks_with_previous(exists, num_blocks, block_length)[..., 0]
    causal = causal_mask(block_length, 2 * block_length, block_length)
    return ops.logical_and(exists[:, :, None, :] > 0, causal)
