"""Relative terms of one table for the full score matrix on TensorFlow."""

import tensorflow as tf

from t2t_relpos.attention.tensorflow.band import diagonal_rows, table_gradient


class NoTerms:
    """Relative terms of an absent table. They contribute nothing."""

    def matmul(self, x, y, bias=None):
        """Returns (scores, the bias of the band or None).

        The scores are `x·yᵀ`, plus `bias`, plus all terms outside the band.

        Args:
            x: `[B, N, T, H]`.
            y: `[B, N, S, H]`.
            bias: `[B, N, T, 1]`, added for all keys, or None.
        """
        scores = tf.matmul(x, y, transpose_b=True)
        return scores if bias is None else scores + bias, None

    def add_band(self, scores, diagonals):
        """Adds the band. Returns (scores, band after the addition, or None)."""
        return scores, None

    def reference_scores(self, x):
        """Returns the products of `x` with the reference row, `[B, N, T, 1]`, or None."""
        return None

    def read_band(self, weights):
        """Returns the band of the weights, or None."""
        return None

    def sum_by_id(self, weights, band=None):
        """Returns the sums of weights by difference id `[B, N, L, T]`, or None."""
        return None

    def values(self, sums, total):
        """Returns `[B, N, T, H]`, or None.

        Args:
            sums: from `sum_by_id`.
            total: sums of each query's weights `[B, N, T, 1]`. None leaves out the reference row.
        """
        return None

    def gradient(self, sums, x, total):
        """Returns the table's gradient, or None. `x`: the other factor of the product."""
        return None


class DiagonalTerms(NoTerms):
    """Relative terms of a table: a band of diagonals and the left tail.

    Args:
        queries: the `QueryBand` of all queries.
        band: the `Band` of the matrix.
        table: `[2K + 1, H]` or `[N, 2K + 1, H]`.
    """

    def __init__(self, queries, band, table):
        self._queries, self._band, self._table = queries, band, table
        self._causal = queries.shape.causal
        self._rows, self._reference = diagonal_rows(table, causal=self._causal)

    def matmul(self, x, y, bias=None):
        by_id = tf.matmul(self._rows, x, transpose_b=True)
        if bias is not None or not self._causal:
            x = self._queries.append_query_columns(x, by_id, bias)
            y = self._band.append_key_columns(y)
        return tf.matmul(x, y, transpose_b=True), self._queries.to_diagonals(by_id)

    def add_band(self, scores, diagonals):
        return self._band.add(scores, diagonals)

    def reference_scores(self, x):
        # Not a matmul with one column: see `matmul_table`.
        return tf.reduce_sum(x * tf.cast(self._reference, x.dtype), -1, keepdims=True)

    def read_band(self, weights):
        return self._band.read(weights)

    def sum_by_id(self, weights, band=None):
        band = self.read_band(weights) if band is None else band
        tail = None if self._causal else self._band.sum_tail(weights, prefer_matmul=True)
        return self._queries.sum_by_id(band, tail)

    def values(self, sums, total):
        values = tf.matmul(sums, self._rows, transpose_a=True)
        return values if total is None else values + total * self._reference

    def gradient(self, sums, x, total):
        heads = [0] if len(self._table.shape) == 3 else [0, 1]
        d_rows = tf.reduce_sum(tf.matmul(sums, x), heads)
        d_reference = tf.zeros_like(d_rows[..., :1, :])
        if total is not None:
            d_reference = tf.reduce_sum(tf.reduce_sum(total * x, -2, keepdims=True), heads)
        return table_gradient(d_rows, d_reference, causal=self._causal)
