"""Relative terms of all pairs at once, on TensorFlow: along diagonals of their matrix, or by one product of short causal sequences."""

import tensorflow as tf
from keras import ops

from t2t_relpos.attention import _tensorflow_triangle
from t2t_relpos.attention._tensorflow_diagonals import Band, Diagonals, gradient_of_table, relative_rows

# Up to so many keys stretches are short: long ones make fewer columns, and more diagonals at their edges.
LONGEST_SHORT = 256
SHORT_STRETCH, LONG_STRETCH = 16, 64
# From so many positions on (of pairs: from its square) this is faster than rows looked up for all pairs.
SHORTEST = 96
# Where causal there are no stretches, and it pays sooner.
SHORTEST_CAUSAL = 40
# Up to so many positions a product with rows of all distances is faster, where causal and with one table for all heads.
LONGEST_TRIANGLE = 39


class Choice:
    """Relative terms in the fastest way for these lengths: along diagonals, where the last query stands at the last key; by
    `_tensorflow_triangle`, where queries are the keys' and later ones hidden; in another way elsewhere.

    Args: as those of `attend`; `reach` is K.
    """

    def __init__(self, query, key, reach, query_offset, causal):
        length_q, length_k = ops.shape(query)[2], ops.shape(key)[2]
        self._is_triangle = causal and (length_q == length_k) & (length_q <= LONGEST_TRIANGLE) & (query_offset == 0)
        # A single diagonal is another thing for TensorFlow; what is computed of hidden keys does no harm.
        causal = causal and reach > 1
        stretch, shortest = (SHORT_STRETCH, SHORTEST_CAUSAL) if causal else (_stretch(length_k), SHORTEST)
        self._settings = reach, causal, stretch
        self._when = (
            (length_q * length_k >= shortest**2)
            & (length_q >= reach + (0 if causal else stretch))
            & (length_k >= length_q)
            & (query_offset == length_k - length_q)
        )

    def scores(self, query, key, table, otherwise):
        """`q·kᵀ + q·a^Kᵀ` but for a number for each query, of which softmax knows nothing.

        Args:
            query: `[B, N, T, H]`.
            key: `[B, N, S, H]`.
            table: `[2K + 1, H]` or `[N, 2K + 1, H]`.
            otherwise: gives them in another way.

        Returns:
            `[B, N, T, S]`.
        """
        shape = *query.shape[:3], key.shape[2]
        return self._choose(_scores, _tensorflow_triangle.scores, (query, key, table), otherwise, shape)

    def outputs(self, weights, value, table, otherwise):
        """`w·v + w·a^V`.

        Args:
            weights: `[B, N, T, S]`.
            value: `[B, N, S, H]`.
            table: `[2K + 1, H]` or `[N, 2K + 1, H]`.
            otherwise: gives them in another way.

        Returns:
            `[B, N, T, H]`.
        """
        shape = *weights.shape[:3], value.shape[3]
        return self._choose(_outputs, _tensorflow_triangle.outputs, (weights, value, table), otherwise, shape)

    def _choose(self, along, triangle, tensors, otherwise, shape):
        def way(function, *settings):
            run = function.python_function if tf.executing_eagerly() else function
            return lambda: run(*(tf.convert_to_tensor(x) for x in tensors), *settings)

        def longer():
            return _cond(self._when, way(along, *self._settings), otherwise, shape)

        is_triangle = self._is_triangle if len(tensors[2].shape) == 2 else False
        return _cond(is_triangle, way(triangle), longer, shape)


def _cond(when, yes, no, shape):
    if isinstance(when, bool):
        return yes() if when else no()
    return tf.ensure_shape(tf.cond(when, yes, no), shape)


def _stretch(length_k):
    if isinstance(length_k, int):
        return SHORT_STRETCH if length_k <= LONGEST_SHORT else LONG_STRETCH
    return tf.where(length_k <= LONGEST_SHORT, SHORT_STRETCH, LONG_STRETCH)


# Functions of their own, so that in a graph all layers share what is traced.
@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _scores(query, key, table, reach, causal, stretch):
    diagonals, band = _at_the_end(ops.shape(query)[2], ops.shape(key)[2], reach, causal, stretch, query.dtype)

    @tf.custom_gradient
    def run(query, key, table):
        rows, _ = relative_rows(table, causal)

        def gradient(upstream):
            by_label = _collected(diagonals, band, upstream)
            d_query = tf.matmul(upstream, key) + tf.matmul(by_label, rows, transpose_a=True)
            d_key = tf.matmul(upstream, query, transpose_a=True)
            return d_query, d_key, _of_table(by_label, query, table, None, causal)

        return _spread(diagonals, band, query, key, tf.matmul(rows, query, transpose_b=True)), gradient

    return run(query, key, table)


@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _outputs(weights, value, table, reach, causal, stretch):
    diagonals, band = _at_the_end(*ops.shape(weights)[2:], reach, causal, stretch, weights.dtype)

    @tf.custom_gradient
    def run(weights, value, table):
        rows, base = relative_rows(table, causal)
        by_label, total = _collected(diagonals, band, weights), tf.reduce_sum(weights, -1, keepdims=True)

        def gradient(upstream):
            of_labels = tf.matmul(rows, upstream, transpose_b=True)
            of_base = tf.matmul(upstream, base, transpose_b=True)
            d_weights = _spread(diagonals, band, upstream, value, of_labels, of_base)
            d_value = tf.matmul(weights, upstream, transpose_a=True)
            return d_weights, d_value, _of_table(by_label, upstream, table, total, causal)

        return tf.matmul(weights, value) + tf.matmul(by_label, rows, transpose_a=True) + total * base, gradient

    return run(weights, value, table)


def _at_the_end(length_q, length_k, *settings):
    """(diagonals, band) where the last query stands at the last key."""
    first = length_k - length_q
    diagonals = Diagonals(first + tf.range(length_q), *settings)
    return diagonals, Band(diagonals, first, length_q, length_k)


def _spread(diagonals, band, x, y, by_label, base=None):
    """`x·yᵀ` with entries by label, and `base` `[.., T, 1]`, added to every pair."""
    if base is not None or not diagonals.causal:
        x, y = diagonals.with_far(x, by_label, base), band.with_columns(y)
    return band.add(tf.matmul(x, y, transpose_b=True), diagonals.along(by_label))


def _collected(diagonals, band, pairs):
    """Sums of pairs by label: the transpose of `_spread`."""
    return diagonals.by_label(band.read(pairs), None if diagonals.causal else band.far(pairs))


def _of_table(by_label, x, table, total, causal):
    """The gradient of a table, of whose rows come `by_labelᵀ·rows`, and of whose base comes `total`."""
    heads = [0] if len(table.shape) == 3 else [0, 1]
    rows = tf.reduce_sum(tf.matmul(by_label, x), heads)
    base = tf.zeros_like(rows[..., :1, :])
    if total is not None:
        base = tf.reduce_sum(tf.matmul(total, x, transpose_a=True), heads)
    return gradient_of_table(rows, base, causal)
