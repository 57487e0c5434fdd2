"""Relative terms on TensorFlow for sequences of middle length: read and written along diagonals of the matrix of all pairs.

A relative position is a diagonal. Only the 2K nearest ones have rows of their own; what all keys further away have in
common is added by the product of queries and keys itself, from columns that say in which stretch a key stands.
"""

import tensorflow as tf
from keras import ops

# Up to so many keys stretches are short: long ones make fewer columns, and more diagonals at their edges.
LONGEST_SHORT = 256
SHORT_STRETCH, LONG_STRETCH = 16, 64
# From so many positions on (of pairs: from its square) this is faster than rows looked up for all pairs.
SHORTEST = 96


class Diagonals:
    """The labels of T queries and S keys, the last query standing at the last key.

    A row of a table is told apart from the row that keys furthest to the right have, which is its "base" (to the left,
    where `causal`): what is the same for all keys of a query is added once. "By label" are therefore `[.., L, T]`
    entries of the L = 2K other labels (K where `causal`), from the right to the left.

    Args:
        length_q: T, an int or a scalar tensor; at least K and a stretch.
        length_k: S, not less than T.
        reach: K, at least 1, or 2 where `causal`.
        causal: whether keys after a query are hidden, and what is written there is nobody's concern.
        stretch: number of keys of a stretch, an int or a scalar tensor; of all keys where `causal`.
        dtype: of the entries.
    """

    def __init__(self, length_q, length_k, reach, causal, stretch, dtype):
        self.causal = causal
        offset = length_k - length_q
        last = offset if causal else offset + reach - 1
        self.num_labels = reach if causal else 2 * reach
        self._range = last + 1 - self.num_labels - (0 if causal else stretch - 1), last
        count = (length_k + stretch - 1) // stretch
        columns = tf.range(count)
        self._stretches = tf.cast(tf.range(length_k)[:, None] // stretch == columns, dtype)
        # Where the keys begin that have the label 0.
        far = tf.range(length_q) + offset - reach
        self._whole = tf.cast((columns + 1) * stretch <= far[:, None], dtype)
        self._edge = None if causal else tf.cast(tf.range(1, stretch)[:, None] <= far % stretch, dtype)

    def rows(self, table):
        """A table `[.., 2K + 1, H]` -> (rows by label relative to the base `[.., L, H]`, the base `[.., 1, H]`)."""
        if self.causal:
            base, others = table[..., :1, :], table[..., 1 : self.num_labels + 1, :]
        else:
            base, others = table[..., -1:, :], table[..., :-1, :]
        return others[..., ::-1, :] - base, base

    def spread(self, x, y, by_label, base=None):
        """`x·yᵀ` with entries by label added to every pair: `[.., T, H]`, `[.., S, H]` -> `[.., T, S]`.

        `base`, `[.., T, 1]`, is added to all keys of a query.
        """
        base = None if base is None else tf.broadcast_to(base, tf.concat([tf.shape(x)[:-1], tf.shape(self._whole)[1:]], 0))
        if not self.causal:
            far = by_label[..., -1, :, None] * self._whole
            base = far if base is None else far + base
        if base is not None:
            x, y = tf.concat([x, base], -1), self._with_stretches(y)
        product = tf.matmul(x, y, transpose_b=True)
        if not self.causal:
            by_label = tf.concat([by_label, by_label[..., -1:, :] * self._edge], -2)
        by_label += self._diagonals_of(product)
        if not product.shape.is_fully_defined():
            # Of a shape that is known in part, TensorFlow's inference takes the diagonals for a single one.
            by_label = tf.compat.v1.placeholder_with_default(by_label, None)
        return tf.linalg.set_diag(product, by_label, k=self._range, align="LEFT_RIGHT")

    def collect(self, pairs, y):
        """(`pairs·y`, sums of pairs by label, sums of all of a query `[.., T, 1]`): the transpose of `spread`."""
        product = tf.matmul(pairs, self._with_stretches(y))
        product, sums = product[..., : y.shape[-1]], product[..., y.shape[-1] :]
        by_label = self._diagonals_of(pairs)
        if not self.causal:
            by_label, edge = by_label[..., : self.num_labels, :], by_label[..., self.num_labels :, :]
            far = tf.reduce_sum(sums * self._whole, -1) + tf.reduce_sum(edge * self._edge, -2)
            by_label = tf.concat([by_label[..., :-1, :], by_label[..., -1:, :] + far[..., None, :]], -2)
        return product, by_label, tf.reduce_sum(sums, -1, keepdims=True)

    def _diagonals_of(self, pairs):
        """Entries of every query, whatever the alignment's name: all of a query's stand in one column."""
        return tf.linalg.diag_part(pairs, k=self._range, align="LEFT_RIGHT")

    def _with_stretches(self, y):
        stretches = tf.broadcast_to(self._stretches, tf.concat([tf.shape(y)[:-1], tf.shape(self._stretches)[1:]], 0))
        return tf.concat([y, stretches], -1)


class Choice:
    """Relative terms along diagonals, where they are faster and the last query stands at the last key; in another way elsewhere.

    Args: as those of `attend`; `reach` is K.
    """

    def __init__(self, query, key, reach, query_offset, causal):
        length_q, length_k = ops.shape(query)[2], ops.shape(key)[2]
        # A single diagonal is another thing for TensorFlow; what is computed of hidden keys does no harm.
        causal = causal and reach > 1
        stretch = length_k if causal else _stretch(length_k)
        self._settings = reach, causal, stretch
        self._when = (
            (length_q * length_k >= SHORTEST**2)
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
        return self._choose(_scores, (query, key, table), otherwise, (*query.shape[:3], key.shape[2]))

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
        return self._choose(_outputs, (weights, value, table), otherwise, (*weights.shape[:3], value.shape[3]))

    def _choose(self, function, tensors, otherwise, shape):
        run = function.python_function if tf.executing_eagerly() else function

        def along():
            return run(*(tf.convert_to_tensor(x) for x in tensors), *self._settings)

        if isinstance(self._when, bool):
            return along() if self._when else otherwise()
        return tf.ensure_shape(tf.cond(self._when, along, otherwise), shape)


def _stretch(length_k):
    if isinstance(length_k, int):
        return SHORT_STRETCH if length_k <= LONGEST_SHORT else LONG_STRETCH
    return tf.where(length_k <= LONGEST_SHORT, SHORT_STRETCH, LONG_STRETCH)


# Functions of their own, so that in a graph all layers share what is traced.
@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _scores(query, key, table, reach, causal, stretch):
    diagonals = Diagonals(ops.shape(query)[2], ops.shape(key)[2], reach, causal, stretch, query.dtype)

    @tf.custom_gradient
    def run(query, key, table):
        rows, _ = diagonals.rows(table)

        def gradient(upstream):
            d_query, by_label, _ = diagonals.collect(upstream, key)
            d_query += tf.matmul(by_label, rows, transpose_a=True)
            d_key = tf.matmul(upstream, query, transpose_a=True)
            return d_query, d_key, _of_table(diagonals, by_label, query, table, None)

        return diagonals.spread(query, key, tf.matmul(rows, query, transpose_b=True)), gradient

    return run(query, key, table)


@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _outputs(weights, value, table, reach, causal, stretch):
    diagonals = Diagonals(*ops.shape(weights)[2:], reach, causal, stretch, weights.dtype)

    @tf.custom_gradient
    def run(weights, value, table):
        rows, base = diagonals.rows(table)
        outputs, by_label, total = diagonals.collect(weights, value)

        def gradient(upstream):
            of_labels = tf.matmul(rows, upstream, transpose_b=True)
            of_base = tf.matmul(upstream, base, transpose_b=True)
            d_weights = diagonals.spread(upstream, value, of_labels, of_base)
            d_value = tf.matmul(weights, upstream, transpose_a=True)
            return d_weights, d_value, _of_table(diagonals, by_label, upstream, table, total)

        return outputs + tf.matmul(by_label, rows, transpose_a=True) + total * base, gradient

    return run(weights, value, table)


def _of_table(diagonals, by_label, x, table, total):
    """The gradient of a table, of whose rows come `by_labelᵀ·rows`, and of whose base comes `total`."""
    heads = [0] if len(table.shape) == 3 else [0, 1]
    rows = tf.reduce_sum(tf.matmul(by_label, x), heads)
    base = -tf.reduce_sum(rows, -2, keepdims=True)
    if total is not None:
        base += tf.reduce_sum(tf.matmul(total, x, transpose_a=True), heads)
    if diagonals.causal:
        unused = table.shape[-2] - diagonals.num_labels - 1
        return tf.concat([base, rows[..., ::-1, :], tf.zeros_like(table[..., :unused, :])], -2)
    return tf.concat([rows[..., ::-1, :], base], -2)
