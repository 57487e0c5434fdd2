"""Relative terms for arbitrary labels of pairs, without a [T, S, H] or [T, S, R] tensor.

Queries are multiplied with the table once, `[B, N, T, R]` products by label;
each pair takes the one of its label. For values, weights are summed by label,
then multiplied with the table. Both need the same flat index of a pair's label.
"""

from keras import ops

from t2t_relpos.attention.products import times_table


def label_index(labels, num_labels, num_heads):
    """Where the entry of a pair's label stands in a flattened `[B, N, T, R + 1]`.

    Args:
        labels: int `[B, T, S]`. What is not in `[0, R)` is "no edge" and
            stands at R.
        num_labels: R.
        num_heads: N.

    Returns:
        int32 `[B, N, T, S]`.
    """
    labels = ops.cast(labels, "int32")
    is_edge = ops.logical_and(labels >= 0, labels < num_labels)
    labels = ops.where(is_edge, labels, num_labels)
    batch, length_q, _ = ops.shape(labels)
    rows = ops.arange(batch * num_heads * length_q, dtype="int32")
    rows = ops.reshape(rows, (batch, num_heads, length_q, 1))
    return rows * (num_labels + 1) + ops.expand_dims(labels, 1)


def labelled_scores(query, table, index):
    """`out[b, n, i, j] = query[b, n, i]·table[label of (i, j)]`, 0 without an edge.

    Args:
        query: `[B, N, T, H]`.
        table: `[R, H]` for all heads or `[N, R, H]`.
        index: of `label_index`.

    Returns:
        `[B, N, T, S]`.
    """
    by_label = times_table(query, table, transpose=True)
    by_label = ops.concatenate([by_label, ops.zeros_like(by_label[..., :1])], axis=-1)
    # Along an inner axis: the gradient of that is dense.
    return ops.take(ops.reshape(by_label, (1, -1)), index, axis=1)[0]


def labelled_values(weights, table, index):
    """`out[b, n, i] = sum over j of weights[b, n, i, j]·table[label of (i, j)]`.

    Args:
        weights: `[B, N, T, S]`.
        table: `[R, H]` for all heads or `[N, R, H]`.
        index: of `label_index`.

    Returns:
        `[B, N, T, H]`.
    """
    batch, heads, length_q, _ = ops.shape(weights)
    num_labels = table.shape[-2]
    sums = ops.segment_sum(
        ops.reshape(weights, (-1,)),
        ops.reshape(index, (-1,)),
        num_segments=batch * heads * length_q * (num_labels + 1),
    )
    by_label = ops.reshape(sums, (batch, heads, length_q, num_labels + 1))[..., :num_labels]
    return times_table(by_label, table)
