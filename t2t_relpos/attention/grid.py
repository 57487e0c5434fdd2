"""Attention among the cells of a grid, with a relative term for each of its axes."""

from keras import ops

from t2t_relpos.attention.attend import relative_scores
from t2t_relpos.attention.masks import masked_softmax


def attend_2d(query, key, value, height_table, width_table, *, mask=None, dropout=None):
    """Attention whose scores depend on how many rows and how many columns cells are apart.

    `softmax(q·k + q·a^h + q·a^w)·v`, with `a^h` chosen by the rows between
    query and key and `a^w` by the columns. Scores are not scaled: scale `query`.

    Args:
        query: `[B, N, height, width, H]`.
        key: `[B, N, height, width, H]`.
        value: `[B, N, height, width, Hv]`.
        height_table: `[2K + 1, H]` for all heads or `[N, 2K + 1, H]`, by
            clipped distance.
        width_table: likewise.
        mask: bool, broadcasts to `[B, N, P, P]` with P = height·width, cells
            row by row; True = attend.
        dropout: a function of the weights, or None.

    Returns:
        (outputs `[B, N, height, width, Hv]`, weights before dropout
        `[B, N, P, P]`).

    Reference: t2t `dot_product_unmasked_self_attention_relative_2d`.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.attention.grid import attend_2d
    >>> x = np.ones((1, 2, 3, 5, 4), "float32")
    >>> outputs, weights = attend_2d(x, x, x, np.ones((5, 4), "float32"), np.ones((7, 4), "float32"))
    >>> tuple(outputs.shape), tuple(weights.shape)
    ((1, 2, 3, 5, 4), (1, 2, 15, 15))
    """
    batch, heads, height, width, _ = ops.shape(query)
    cells = height * width
    flat_query, flat_key, flat_value = (
        ops.reshape(x, (batch, heads, cells, x.shape[-1])) for x in (query, key, value)
    )
    scores = ops.matmul(flat_query, ops.swapaxes(flat_key, -1, -2))
    scores = ops.reshape(scores, (batch, heads, height, width, height, width))
    # Each term depends on one axis of the key: the other is broadcast, not repeated.
    by_column = _scores_along_width(query, width_table)
    by_row = _scores_along_width(ops.swapaxes(query, 2, 3), height_table)
    scores = scores + by_column[:, :, :, :, None, :] + ops.swapaxes(by_row, 2, 3)[..., None]
    weights = masked_softmax(ops.reshape(scores, (batch, heads, cells, cells)), mask)
    kept = weights if dropout is None else dropout(weights)
    outputs = ops.matmul(kept, flat_value)
    return ops.reshape(outputs, (batch, heads, height, width, value.shape[-1])), weights


def _scores_along_width(query, table):
    """`out[.., y, x, j] = query[.., y, x]·table[label(x, j)]`: `[B, N, height, width, width]`."""
    batch, heads, height, width, depth = ops.shape(query)
    lines = ops.reshape(ops.swapaxes(query, 1, 2), (batch * height, heads, width, depth))
    scores = relative_scores(lines, table, width, 0)
    return ops.swapaxes(ops.reshape(scores, (batch, height, heads, width, width)), 1, 2)
