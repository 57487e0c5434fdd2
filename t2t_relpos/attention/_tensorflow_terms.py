"""What a table adds to a matrix of all pairs on TensorFlow, and the transpose of that: for `_tensorflow_at_once.py`.

There are four kinds, of the same methods: none where there is no table, terms along diagonals, by looked-up rows
(`_tensorflow_lookup.py`) and by one product with rows of all distances (`_tensorflow_triangle.py`).
"""

import tensorflow as tf

from t2t_relpos.attention._tensorflow_diagonals import gradient_of_table, relative_rows


class NoTerms:
    """Those of no table."""

    # Whether weights must be 0 where a query has no keys, too.
    needs_zeros = False
    # Whether a pass over all pairs takes less than one over outputs.
    is_short = False

    def in_front(self, x):
        """`[B, N, T, X]` -> in the order in which a table's rows are multiplied with it, of rank 4."""
        return x

    def multiplied(self, x, front, y, base=None):
        """(`x·yᵀ`, and what the table adds, and `base` `[B, N, T, 1]` for all keys; what is missing of it, or None).

        Args:
            x: `[B, N, T, H]`.
            front: `in_front(x)`.
            y: `[B, N, S, H]`.
            base: None stands for 0.
        """
        pairs = tf.matmul(x, y, transpose_b=True)
        return pairs if base is None else pairs + base, None

    def completed(self, pairs, missing):
        """(pairs with what is missing of them, what `near` gives of them then, or None)."""
        return pairs, None

    def base_of(self, x):
        """What the terms leave out, the same for all keys: `[B, N, T, 1]`; None stands for 0."""
        return None

    def near(self, pairs):
        """What `collect` and `completed` want to know of pairs, of rank 4, or None."""
        return None

    def collect(self, pairs, near=None):
        """Sums of pairs by row of the table, of rank 4, or None; `near` if that is known."""
        return None

    def outputs(self, collected, total):
        """`[B, N, T, H]`: what was collected times rows, and what is left out times `total` `[B, N, T, 1]`; None stands for 0."""
        return None

    def gradient(self, collected, front, total):
        """The table's gradient, `front` standing for the other factor of `outputs`; None where there is no table."""
        return None


class DiagonalTerms(NoTerms):
    """Those along diagonals, relative to the table's base.

    Args:
        diagonals: the `Diagonals` of all queries.
        band: the `Band` of the matrix.
        table: `[2K + 1, H]` or `[N, 2K + 1, H]`.
    """

    def __init__(self, diagonals, band, table):
        self._diagonals, self._band, self._table = diagonals, band, table
        self._rows, self._base = relative_rows(table, diagonals.causal)

    def multiplied(self, x, front, y, base=None):
        by_label = tf.matmul(self._rows, x, transpose_b=True)
        if base is not None or not self._diagonals.causal:
            x, y = self._diagonals.with_far(x, by_label, base), self._band.with_columns(y)
        return tf.matmul(x, y, transpose_b=True), self._diagonals.along(by_label)

    def completed(self, pairs, missing):
        return self._band.add(pairs, missing)

    def base_of(self, x):
        # No product with a column: of one head that is not safe, see `times_table`.
        return tf.reduce_sum(x * tf.cast(self._base, x.dtype), -1, keepdims=True)

    def near(self, pairs):
        return self._band.read(pairs)

    def collect(self, pairs, near=None):
        near = self.near(pairs) if near is None else near
        far = None if self._diagonals.causal else self._band.far(pairs, by_product=True)
        return self._diagonals.by_label(near, far)

    def outputs(self, collected, total):
        outputs = tf.matmul(collected, self._rows, transpose_a=True)
        return outputs if total is None else outputs + total * self._base

    def gradient(self, collected, front, total):
        heads = [0] if len(self._table.shape) == 3 else [0, 1]
        rows = tf.reduce_sum(tf.matmul(collected, front), heads)
        base = (
            tf.zeros_like(rows[..., :1, :])
            if total is None
            else tf.reduce_sum(tf.reduce_sum(total * front, -2, keepdims=True), heads)
        )
        return gradient_of_table(rows, base, self._diagonals.causal)
