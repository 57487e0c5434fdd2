"""tensor2tensor's other relative attentions: tables without clipping, two axes, and two blocks."""

from t2t_relpos.attention.band import Distances
from t2t_relpos.attention.gather import products_with_keys
from t2t_relpos.attention.masks import causal_mask, expand_to_batch, masked_softmax
from t2t_relpos.attention.skew import expand_ids, sum_by_id
from t2t_relpos.attention.tables import relative_values, scores_by_id
from t2t_relpos.backend import arange, as_tensors, matmul, ops


def two_sided_table(table):
    """Converts a table that is zero beyond its range to one for clipped distances.

    Args:
        table: rows for distances `-(K - 1)` to `K - 1`, `[2K - 1, H]` or `[N, 2K - 1, H]`.

    Returns:
        Rows for distances `-K` to `K` with zeros at both ends, as `attend` expects.

    Reference: t2t `get_relative_embeddings_left_right`.
    """
    return _pad_rows(table, 1, 1)


def left_sided_table(table):
    """Converts a table of distances up to 0 to one for clipped distances.

    Args:
        table: rows for distances `-(K - 1)` to 0, `[K, H]` or `[N, K, H]`.

    Returns:
        Rows for distances `-K` to `K`, zero at `-K` and for keys after the query.

    Reference: t2t `get_relative_embeddings_left`.
    """
    return _pad_rows(table, 1, table.shape[-2])


def _pad_rows(table, before, after):
    widths = [[0, 0]] * (len(table.shape) - 2)
    return ops.pad(table, [*widths, [before, after], [0, 0]])


def _distances(table):
    """Returns the distances of a table with rows for `-K` to `K`."""
    return Distances.of((table.shape[-2] - 1) // 2)


def attend_2d(query, key, value, height_table, width_table, *, mask=None, dropout=None):
    """Returns attention whose scores depend on the distances along two axes.

    `softmax(q·k + q·a^h + q·a^w)·v`, where `a^h` depends on the distance in rows and `a^w` on the
    distance in columns. Scores are not scaled: scale `query`.

    Args:
        query: `[B, N, height, width, H]`.
        key: `[B, N, height, width, H]`.
        value: `[B, N, height, width, Hv]`.
        height_table: `[2K + 1, H]` for all heads or `[N, 2K + 1, H]`, by clipped distance.
        width_table: as `height_table`.
        mask: bool, broadcasts to `[B, N, P, P]` with P = height·width; True = attend.
            Default: None.
        dropout: a function of the weights. Default: None.

    Returns:
        (outputs `[B, N, height, width, Hv]`, weights before dropout `[B, N, P, P]`).

    Reference: t2t `dot_product_unmasked_self_attention_relative_2d`.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.attention.t2t_variants import attend_2d
    >>> x = np.ones((1, 2, 3, 5, 4), "float32")
    >>> tables = np.ones((5, 4), "float32"), np.ones((7, 4), "float32")
    >>> outputs, weights = attend_2d(x, x, x, *tables)
    >>> tuple(outputs.shape), tuple(weights.shape)
    ((1, 2, 3, 5, 4), (1, 2, 15, 15))
    """
    query, key, value, height_table, width_table = as_tensors(
        query, key, value, height_table, width_table
    )
    batch, heads, height, width, _ = ops.shape(query)
    cells = height * width
    flat_query, flat_key, flat_value = (
        ops.reshape(x, (batch, heads, cells, x.shape[-1])) for x in (query, key, value)
    )
    scores = products_with_keys(flat_query, flat_key)
    scores = ops.reshape(scores, (batch, heads, height, width, height, width))
    # Each term depends on one axis of the key and is broadcast along the other.
    by_column = ops.expand_dims(_scores_along_width(query, width_table), 4)
    by_row = ops.swapaxes(_scores_along_width(ops.swapaxes(query, 2, 3), height_table), 2, 3)
    scores = scores + by_column + ops.expand_dims(by_row, -1)
    weights = masked_softmax(ops.reshape(scores, (batch, heads, cells, cells)), mask)
    weights = ops.cast(weights, query.dtype)
    dropped = weights if dropout is None else dropout(weights)
    outputs = matmul(dropped, flat_value)
    return ops.reshape(outputs, (batch, heads, height, width, value.shape[-1])), weights


def _scores_along_width(query, table):
    """Returns `query[.., y, x]·table[id of (x, j)]`, `[B, N, height, width, width]`."""
    batch, heads, height, width, depth = ops.shape(query)
    lines = ops.reshape(ops.swapaxes(query, 1, 2), (batch * height, heads, width, depth))
    scores = expand_ids(scores_by_id(lines, table), _distances(table), width, 0)
    return ops.swapaxes(ops.reshape(scores, (batch, height, heads, width, width)), 1, 2)


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
    """Returns causal attention to the query's block and the previous block.

    Time and memory are linear in length. Scores are not scaled: scale `query`. As in tensor2tensor,
    `value_table` has no effect on queries of the first block, nor on sequences shorter than two
    blocks.

    Args:
        query: `[B, N, T, H]`.
        key: `[B, N, T, H]`.
        value: `[B, N, T, Hv]`.
        key_table: rows for distances from `-(R - 1)` to 0, `[R, H]` for all heads or `[N, R, H]`,
            with R at least twice `block_length`.
        value_table: as `key_table` with depth Hv. Default: None.
        block_length: an int.
        key_mask: bool `[B, T]`; True = attend. Default: None, all True.
        dropout: a function of the weights. Default: None.

    Returns:
        outputs `[B, N, T, Hv]`.

    Reference: t2t `masked_relative_local_attention_1d`.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.attention.t2t_variants import attend_two_blocks
    >>> x = np.ones((1, 2, 7, 4), "float32")
    >>> tuple(attend_two_blocks(x, x, x, np.ones((12, 4), "float32"), block_length=3).shape)
    (1, 2, 7, 4)
    """
    query, key, value, key_table, value_table = as_tensors(
        query, key, value, key_table, value_table
    )
    batch, _, length, _ = ops.shape(query)
    count = (length + block_length - 1) // block_length
    queries = split_blocks(_pad_end(query, count, block_length), count, block_length)
    keys, values = (_with_previous(x, count, block_length) for x in (key, value))
    scores = products_with_keys(queries, keys)
    table = _table_of_two_blocks(key_table, block_length)
    by_id = scores_by_id(queries, table)
    scores = scores + expand_ids(by_id, _distances(table), 2 * block_length, block_length)
    key_mask = expand_to_batch(key_mask, query)
    if key_mask is None:
        key_mask = ops.ones((batch, length), dtype="bool")
    weights = masked_softmax(scores, _two_block_mask(key_mask, count, block_length))
    weights = ops.cast(weights, query.dtype)
    dropped = weights if dropout is None else dropout(weights)
    outputs = matmul(dropped, values)
    if value_table is not None:
        table = _table_of_two_blocks(value_table, block_length)
        sums = sum_by_id(ops.cast(dropped, scores.dtype), _distances(table), block_length)
        relative = relative_values(sums, table, query.dtype)
        outputs = outputs + relative * _has_values(length, batch, count, block_length, relative)
    return join_blocks(outputs, batch, count)[:, :, :length]


def _table_of_two_blocks(table, block_length):
    """Returns the rows for distances within two blocks, as a table of clipped distances."""
    return left_sided_table(table[..., -2 * block_length :, :])


def _has_values(length, batch, count, block_length, like):
    """Returns 1 for blocks whose outputs include `value_table`, 0 for others."""
    not_first = arange(count) > 0
    # As a tensor: JAX can't compare symbolic lengths.
    is_long = ops.convert_to_tensor(length, dtype="int32") >= 2 * block_length
    has_values = ops.cast(ops.logical_and(not_first, is_long), like.dtype)
    return ops.expand_dims(ops.tile(has_values, [batch]), (1, 2, 3))


def _pad_end(x, count, size):
    """Pads `[B, N, T, X]` to a multiple of the block length. Lengths may be tensors."""
    batch, heads, length, depth = ops.shape(x)
    zeros = ops.zeros((batch, heads, count * size - length, depth), dtype=x.dtype)
    return ops.concatenate([x, zeros], axis=2)


def _with_previous(x, count, size):
    """Returns each block of `[B, N, T, X]` after the previous one, `[B * blocks, N, 2C, X]`."""
    return join_neighbours(_pad_end(x, count, size), count, size, (-1, 0))


def _two_block_mask(key_mask, count, size):
    """Returns bool `[B * blocks, 1, C, 2C]`: whether a key exists and is not after the query."""
    exists = ops.expand_dims(ops.cast(key_mask, "int32"), (1, 3))
    exists = _with_previous(exists, count, size)[..., 0]
    return ops.logical_and(ops.expand_dims(exists, 2) > 0, causal_mask(size, 2 * size, size))


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
