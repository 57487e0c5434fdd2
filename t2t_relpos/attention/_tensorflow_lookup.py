"""Rows of tables on TensorFlow, with a gradient that is a product."""

import tensorflow as tf

from t2t_relpos.attention._tensorflow_terms import NoTerms


@tf.autograph.experimental.do_not_convert
def rows(table, labels):
    """`[R, H]` and `[T, S]` -> `[T, S, H]`, or `[N, R, H]` -> `[N, T, S, H]`.

    A table has few rows and labels repeat: their gradients are added up by a product with which label is which, several times as fast
    as one by one.
    """

    @tf.custom_gradient
    def run(table):
        return tf.gather(table, labels, axis=-2), lambda upstream: _added_up(
            upstream, labels, table.shape[-2]
        )

    return run(tf.convert_to_tensor(table))


def _added_up(rows, labels, num_labels):
    """`[T, S, H]` -> `[R, H]`, or `[N, T, S, H]` -> `[N, R, H]`: the transpose of `rows`."""
    shape = tf.shape(rows)
    flat = tf.reshape(rows, tf.concat([shape[:-3], [shape[-3] * shape[-2], shape[-1]]], 0))
    is_of = tf.one_hot(tf.reshape(labels, [-1]), num_labels, dtype=rows.dtype)
    return tf.matmul(is_of, flat, transpose_a=True)


class RowTerms(NoTerms):
    """Those of a row for every pair of positions, with which all batch entries, and heads that share a table, are multiplied at once.

    In front stand positions, `[T, B, N, X]`, or heads and positions, `[N, T, B, X]`, where every head has a table.

    Args:
        labels: int `[T, S]`.
        table: `[R, H]` or `[N, R, H]`.
    """

    is_short = True

    def __init__(self, labels, table):
        self._labels, self._table = labels, table
        self._rows = tf.gather(table, labels, axis=-2)
        self._is_shared = len(table.shape) == 2

    def in_front(self, x):
        return tf.transpose(x, (2, 0, 1, 3) if self._is_shared else (1, 2, 0, 3))

    def multiplied(self, x, front, y, base=None):
        pairs, _ = super().multiplied(x, front, y, base)
        return pairs + self._behind(
            tf.matmul(self._joined(front), self._rows, transpose_b=True), front
        ), None

    def near(self, pairs):
        return self.in_front(pairs)

    def collect(self, pairs, near=None):
        return self.near(pairs) if near is None else near

    def outputs(self, collected, total):
        return self._behind(tf.matmul(self._joined(collected), self._rows), collected)

    def gradient(self, collected, front, total):
        rows = tf.matmul(self._joined(collected), self._joined(front), transpose_a=True)
        return _added_up(rows, self._labels, self._table.shape[-2])

    def _joined(self, front):
        """One matrix for each of `rows`."""
        if not self._is_shared:
            return front
        shape = tf.shape(front)
        return tf.reshape(front, [shape[0], shape[1] * shape[2], shape[3]])

    def _behind(self, joined, front):
        """A product of `_joined(front)` -> `[B, N, T, X]`."""
        if not self._is_shared:
            return tf.transpose(joined, (2, 0, 1, 3))
        return tf.transpose(
            tf.reshape(joined, tf.concat([tf.shape(front)[:3], tf.shape(joined)[2:]], 0)),
            (1, 2, 0, 3),
        )
