"""Relative terms of short causal self-attention with one table for all heads, on TensorFlow: by one product.

All queries are multiplied at once with a row for every distance, from T to 0. Read as if its rows had one entry less, the result `[T, T + 1]`
without its first T entries is the matrix of all pairs `[T, T]`: an entry moves one place to the left with every row. Above the
diagonal stands what belongs elsewhere, and is nobody's concern where later keys are hidden.
"""

import tensorflow as tf
from keras import ops

# Up to so many positions this is faster than rows looked up for all pairs.
LONGEST = 39


class Triangle:
    """`scores` and `outputs`, where queries are the keys', later ones are hidden and there are few; in another way elsewhere.

    Args: as those of `attend`.
    """

    def __init__(self, query, key, query_offset):
        length_q, length_k = ops.shape(query)[2], ops.shape(key)[2]
        self._is_one = (length_q == length_k) & (length_q <= LONGEST) & (query_offset == 0)

    def scores(self, query, key, table, otherwise):
        """`q·kᵀ + q·a^Kᵀ`, right for keys that are not after their query; `otherwise` gives them in another way."""
        return self._choose(scores, (query, key, table), otherwise, (*query.shape[:3], key.shape[2]))

    def outputs(self, weights, value, table, otherwise):
        """`w·v + w·a^V`; `otherwise` gives it in another way."""
        return self._choose(outputs, (weights, value, table), otherwise, (*weights.shape[:3], value.shape[3]))

    def _choose(self, function, tensors, otherwise, shape):
        def by_one_product():
            run = function.python_function if tf.executing_eagerly() else function
            return run(*(tf.convert_to_tensor(x) for x in tensors))

        is_one = self._is_one if len(tensors[2].shape) == 2 and tensors[2].shape[0] > 1 else False
        if isinstance(is_one, bool):
            return by_one_product() if is_one else otherwise()
        return tf.ensure_shape(tf.cond(is_one, by_one_product, otherwise), shape)


# Functions of their own, so that in a graph all layers share what is traced.
@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def scores(query, key, table):
    """`q·kᵀ + q·a^Kᵀ`, right for keys that are not after their query.

    Args:
        query, key: `[B, N, T, H]`.
        table: `[2K + 1, H]`.

    Returns:
        `[B, N, T, T]`, whose gradient must be 0 for later keys.
    """

    @tf.custom_gradient
    def run(query, key, table):
        rows, to_table = _rows(table, query)

        def gradient(upstream):
            by_distance = _collected(upstream)
            d_query = tf.matmul(upstream, key) + _joined(by_distance, rows, query)
            d_key = tf.matmul(upstream, query, transpose_a=True)
            return d_query, d_key, to_table(by_distance, query)

        return tf.matmul(query, key, transpose_b=True) + _spread(query, rows), gradient

    return run(query, key, table)


@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def outputs(weights, value, table):
    """`w·v + w·a^V`.

    Args:
        weights: `[B, N, T, T]`, 0 for later keys, for which its gradient is not right.
        value: `[B, N, T, H]`.
        table: `[2K + 1, H]`.

    Returns:
        `[B, N, T, H]`.
    """

    @tf.custom_gradient
    def run(weights, value, table):
        rows, to_table = _rows(table, value)
        by_distance = _collected(weights)

        def gradient(upstream):
            d_weights = tf.matmul(upstream, value, transpose_b=True) + _spread(upstream, rows)
            d_value = tf.matmul(weights, upstream, transpose_a=True)
            return d_weights, d_value, to_table(by_distance, upstream)

        return tf.matmul(weights, value) + _joined(by_distance, rows, value), gradient

    return run(weights, value, table)


def _rows(table, x):
    """(a row for every distance T … 0 `[T + 1, H]`, a function that gives the table's gradient of entries by distance and `x`)."""
    length, reach = tf.shape(x)[2], table.shape[0] // 2
    is_of = tf.one_hot(reach - tf.minimum(tf.range(length, -1, -1), reach), table.shape[0], dtype=table.dtype)

    def to_table(by_distance, x):
        return tf.matmul(is_of, tf.matmul(by_distance, _flat(x), transpose_a=True), transpose_a=True)

    return tf.matmul(is_of, table), to_table


def _flat(x):
    return tf.reshape(x, [-1, x.shape[-1]])


def _spread(x, rows):
    """`[B, N, T, H]` times rows of distances -> `[B, N, T, T]`."""
    batch, heads, length = tf.unstack(tf.shape(x)[:3])
    by_distance = tf.matmul(_flat(x), rows, transpose_b=True)
    pairs = tf.reshape(by_distance, [batch * heads, length * (length + 1)])[:, length:]
    return tf.reshape(pairs, [batch, heads, length, length])


def _collected(pairs):
    """`[B, N, T, T]` -> `[B·N·T, T + 1]` by distance: the transpose of what `_spread` does after its product."""
    batch, heads, length = tf.unstack(tf.shape(pairs)[:3])
    pairs = tf.pad(tf.reshape(pairs, [batch * heads, length * length]), [[0, 0], [length, 0]])
    return tf.reshape(pairs, [batch * heads * length, length + 1])


def _joined(by_distance, rows, like):
    """Entries by distance times rows, in the shape of `like`."""
    return tf.reshape(tf.matmul(by_distance, rows), tf.shape(like))
