"""Relative terms of short causal self-attention with one table for all heads, on TensorFlow: by one product.

All queries are multiplied at once with a row for every distance, from T to 0. Read as if its rows had one entry less, the result `[T, T + 1]`
without its first T entries is the matrix of all pairs `[T, T]`: an entry moves one place to the left with every row. Above the
diagonal stands what belongs elsewhere, and is nobody's concern where later keys are hidden.
"""

import tensorflow as tf

from t2t_relpos.attention._tensorflow_terms import NoTerms


def labels_of_distances(length, reach):
    """`[T + 1, 2K + 1]`, in which row each distance from T to 0 has its 1."""
    return tf.one_hot(reach - tf.minimum(tf.range(length, -1, -1), reach), 2 * reach + 1)


class TriangleTerms(NoTerms):
    """Those of queries that are the keys', right for keys that are not after their query. Sums are `[B, N, T, T + 1]`, by distance.

    Args:
        is_of: `labels_of_distances`.
        table: `[2K + 1, H]`.
    """

    needs_zeros = is_short = True

    def __init__(self, is_of, table):
        self._is_of = tf.cast(is_of, table.dtype)
        self._rows = tf.matmul(self._is_of, table)

    def multiplied(self, x, front, y, base=None):
        pairs, _ = super().multiplied(x, front, y, base)
        batch, heads, length, _ = tf.unstack(tf.shape(x))
        by_distance = tf.reshape(
            tf.matmul(_flat(x), self._rows, transpose_b=True),
            [batch * heads, length * (length + 1)],
        )
        return pairs + tf.reshape(by_distance[:, length:], tf.shape(pairs)), None

    def near(self, pairs):
        batch, heads, length, _ = tf.unstack(tf.shape(pairs))
        pairs = tf.pad(tf.reshape(pairs, [batch * heads, length * length]), [[0, 0], [length, 0]])
        return tf.reshape(pairs, [batch, heads, length, length + 1])

    def collect(self, pairs, near=None):
        return self.near(pairs) if near is None else near

    def outputs(self, collected, total):
        shape = tf.concat([tf.shape(collected)[:3], [self._rows.shape[-1]]], 0)
        return tf.reshape(tf.matmul(_flat(collected), self._rows), shape)

    def gradient(self, collected, front, total):
        return tf.matmul(
            self._is_of,
            tf.matmul(_flat(collected), _flat(front), transpose_a=True),
            transpose_a=True,
        )


def _flat(x):
    """`[B, N, T, X]` -> `[B·N·T, X]`."""
    shape = tf.shape(x)
    return tf.reshape(x, [shape[0] * shape[1] * shape[2], shape[3]])
