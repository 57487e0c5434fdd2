"""Tables whose distances out of range have no vector, as tables of clipped distances.

tensor2tensor's other relative attentions clip nothing: a pair further apart
than the table reaches has the vector zero. A table of clipped distances says
the same with a row of zeros where clipping leads to.
"""

from keras import ops


def two_sided_table(table):
    """Rows for distances `-(K - 1)` … `K - 1` -> rows for `-K` … `K`, zeros at both ends.

    Args:
        table: `[2K - 1, H]` or `[N, 2K - 1, H]`.

    Returns:
        `[2K + 1, H]` or `[N, 2K + 1, H]`, as `attend` takes them.

    Reference: t2t `get_relative_embeddings_left_right`.
    """
    return _pad_rows(table, 1, 1)


def left_sided_table(table):
    """Rows for distances `-(K - 1)` … 0 -> rows for `-K` … `K`, zeros at `-K` and for keys after the query.

    Args:
        table: `[K, H]` or `[N, K, H]`.

    Returns:
        `[2K + 1, H]` or `[N, 2K + 1, H]`, as `attend` takes them.

    Reference: t2t `get_relative_embeddings_left`.
    """
    return _pad_rows(table, 1, table.shape[-2])


def _pad_rows(table, before, after):
    widths = [[0, 0]] * (len(table.shape) - 2)
    return ops.pad(table, [*widths, [before, after], [0, 0]])
