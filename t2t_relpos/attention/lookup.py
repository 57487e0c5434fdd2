"""Relative terms from looked-up rows, `[T, S, H]`: tensor2tensor's way, the fastest while sequences are short.

The rows depend on the pair of positions alone, so all batch entries (and, with
a shared table, all heads) of a position are multiplied with them at once.
"""

import keras
from keras import ops

from t2t_relpos.attention.products import times_rows


def lookup_scores(query, table, labels):
    """`out[b, n, i, j] = query[b, n, i]·table[labels[i, j]]`.

    Args:
        query: `[B, N, T, H]`.
        table: `[R, H]` for all heads or `[N, R, H]`.
        labels: int `[T, S]`.

    Returns:
        `[B, N, T, S]`.
    """
    rows = ops.swapaxes(_rows(table, labels), -1, -2)
    return times_rows(query, rows)


def lookup_values(weights, table, labels):
    """`out[b, n, i] = sum over j of weights[b, n, i, j]·table[labels[i, j]]`.

    Args:
        weights: `[B, N, T, S]`.
        table: `[R, H]` for all heads or `[N, R, H]`.
        labels: int `[T, S]`.

    Returns:
        `[B, N, T, H]`.
    """
    return times_rows(weights, _rows(table, labels))


def _rows(table, labels):
    """`[T, S, H]`, or `[N, T, S, H]`."""
    if keras.backend.backend() == "tensorflow":
        from t2t_relpos.attention import _tensorflow_lookup

        return _tensorflow_lookup.rows(table, labels)
    return ops.take(table, labels, axis=-2)
