"""Relative terms on TensorFlow: read and written along diagonals of a matrix of pairs, be it of all pairs or of a block of queries.

A relative position is a diagonal. Only the 2K nearest ones have rows of their own; what all keys further away have in
common is added by the product of queries and keys itself, from columns that say in which stretch a key stands.
"""

import copy

import tensorflow as tf
from keras import ops

# Up to so many keys stretches are short: long ones make fewer columns, and more diagonals at their edges.
LONGEST_SHORT = 256
SHORT_STRETCH, LONG_STRETCH = 16, 64
# From so many positions on (of pairs: from its square) this is faster than rows looked up for all pairs.
SHORTEST = 96


class Diagonals:
    """The labels of T queries and S keys.

    A row of a table is told apart from the row that keys furthest to the right have, which is its "base" (to the left,
    where `causal`): what is the same for all keys of a query is added once. "By label" are therefore `[.., L, T]`
    entries of the L = 2K other labels (K where `causal`), from the right to the left.

    All keys that are further away than K to the left of the first query have the label 0 for all queries, and behind them
    stretches of keys have it for more and more; what is left of a stretch are diagonals at its edge.

    Args:
        length_q: T, an int or a scalar tensor.
        length_k: S, an int or a scalar tensor.
        offset: key position of query 0, an int or a scalar tensor. Each of the diagonals must have an entry, and one of them
            one of every query.
        reach: K, at least 1, or 2 where `causal`.
        causal: whether keys after a query are hidden, and what is written there is nobody's concern.
        stretch: number of keys of a stretch, at least 2, an int or a scalar tensor; without meaning where `causal`.
        dtype: of the entries.
        product: as `tf.matmul`, which gives entries of that type.
    """

    def __init__(self, length_q, length_k, offset, reach, causal, stretch, dtype, product=tf.matmul):
        self.causal, self.reach, self.stretch, self.product = causal, reach, stretch, product
        self.num_labels = reach if causal else 2 * reach
        self._dtype = dtype
        if not causal:
            rows, self._columns = tf.range(length_q), tf.range((length_q + stretch - 1) // stretch + 1)
            self._whole = tf.cast(self._columns * stretch <= rows[:, None], dtype)
            self._edge = tf.cast(tf.range(1, stretch)[:, None] <= rows % stretch, dtype)
        self._place(offset, length_k)

    def _place(self, offset, length_k):
        below, above = extent(self.reach, self.causal, self.stretch)
        self._range = offset - below + 1, offset + above - 1
        if self.causal:
            self._stretches = tf.ones([length_k, 1], self._dtype)
        else:
            from_first = tf.range(length_k) - (offset - self.reach)
            number = tf.clip_by_value(from_first // self.stretch + 1, 0, self._columns[-1])
            self._stretches = tf.cast(number[:, None] == self._columns, self._dtype)

    def at(self, offset, length_k):
        """The same queries at another place among other keys."""
        moved = copy.copy(self)
        moved._place(offset, length_k)
        return moved

    def spread(self, x, y, by_label, base=None):
        """`x·yᵀ` with entries by label added to every pair: `[.., T, H]`, `[.., S, H]` -> `[.., T, S]`.

        `base`, `[.., T, 1]`, is added to all keys of a query.
        """
        if not self.causal:
            far = by_label[..., -1, :, None] * self._whole
            base = far if base is None else far + base
        if base is not None:
            x, y = tf.concat([x, tf.cast(base, x.dtype)], -1), self._with_stretches(y)
        product = self.product(x, y, transpose_b=True)
        if not self.causal:
            by_label = tf.concat([by_label, by_label[..., -1:, :] * self._edge], -2)
        by_label += self._diagonals_of(product)
        if not product.shape.is_fully_defined():
            # Of a shape that is known in part, TensorFlow's inference takes the diagonals for a single one.
            by_label = tf.compat.v1.placeholder_with_default(by_label, None)
        return tf.linalg.set_diag(product, by_label, k=self._range, align="LEFT_RIGHT")

    def collect(self, pairs, y, total=True):
        """(`pairs·y`, sums of pairs by label, sums of all of a query `[.., T, 1]`): the transpose of `spread`.

        Without `total` the last is None.
        """
        by_label = self._diagonals_of(pairs)
        if self.causal and not total:
            return self.product(pairs, y), by_label, None
        product = self.product(pairs, self._with_stretches(y))
        product, sums = product[..., : y.shape[-1]], product[..., y.shape[-1] :]
        if not self.causal:
            by_label, edge = by_label[..., : self.num_labels, :], by_label[..., self.num_labels :, :]
            far = tf.reduce_sum(sums * self._whole, -1) + tf.reduce_sum(edge * self._edge, -2)
            by_label = tf.concat([by_label[..., :-1, :], by_label[..., -1:, :] + far[..., None, :]], -2)
        return product, by_label, tf.reduce_sum(sums, -1, keepdims=True) if total else None

    def _diagonals_of(self, pairs):
        """Entries of every query, whatever the alignment's name: all of a query's stand in one column."""
        return tf.linalg.diag_part(pairs, k=self._range, align="LEFT_RIGHT")

    def _with_stretches(self, y):
        stretches = tf.cast(self._stretches, y.dtype)
        return tf.concat([y, tf.broadcast_to(stretches, tf.concat([tf.shape(y)[:-1], tf.shape(stretches)[1:]], 0))], -1)


def extent(reach, causal, stretch):
    """(below, above): how many diagonals of `Diagonals` lie at and below the one of equal positions, and at and above it."""
    return (reach, 1) if causal else (reach + stretch, reach)


def relative_rows(table, causal):
    """A table `[.., 2K + 1, H]` -> (rows by label relative to the base `[.., L, H]`, the base `[.., 1, H]`)."""
    if causal:
        base, others = table[..., :1, :], table[..., 1 : (table.shape[-2] + 1) // 2, :]
    else:
        base, others = table[..., -1:, :], table[..., :-1, :]
    return others[..., ::-1, :] - base, base


def gradient_of_table(rows, base, causal):
    """The transpose of `relative_rows`."""
    base -= tf.reduce_sum(rows, -2, keepdims=True)
    parts = [base, rows[..., ::-1, :], tf.zeros_like(rows)] if causal else [rows[..., ::-1, :], base]
    return tf.concat(parts, -2)


class Choice:
    """Relative terms along diagonals, where they are faster and the last query stands at the last key; in another way elsewhere.

    Args: as those of `attend`; `reach` is K.
    """

    def __init__(self, query, key, reach, query_offset, causal):
        length_q, length_k = ops.shape(query)[2], ops.shape(key)[2]
        # A single diagonal is another thing for TensorFlow; what is computed of hidden keys does no harm.
        causal = causal and reach > 1
        stretch = SHORT_STRETCH if causal else _stretch(length_k)
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
    diagonals = _at_the_end(ops.shape(query)[2], ops.shape(key)[2], reach, causal, stretch, query.dtype)

    @tf.custom_gradient
    def run(query, key, table):
        rows, _ = relative_rows(table, causal)

        def gradient(upstream):
            d_query, by_label, _ = diagonals.collect(upstream, key, total=False)
            d_query += tf.matmul(by_label, rows, transpose_a=True)
            d_key = tf.matmul(upstream, query, transpose_a=True)
            return d_query, d_key, _of_table(by_label, query, table, None, causal)

        return diagonals.spread(query, key, tf.matmul(rows, query, transpose_b=True)), gradient

    return run(query, key, table)


@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _outputs(weights, value, table, reach, causal, stretch):
    diagonals = _at_the_end(*ops.shape(weights)[2:], reach, causal, stretch, weights.dtype)

    @tf.custom_gradient
    def run(weights, value, table):
        rows, base = relative_rows(table, causal)
        outputs, by_label, total = diagonals.collect(weights, value)

        def gradient(upstream):
            of_labels = tf.matmul(rows, upstream, transpose_b=True)
            of_base = tf.matmul(upstream, base, transpose_b=True)
            d_weights = diagonals.spread(upstream, value, of_labels, of_base)
            d_value = tf.matmul(weights, upstream, transpose_a=True)
            return d_weights, d_value, _of_table(by_label, upstream, table, total, causal)

        return outputs + tf.matmul(by_label, rows, transpose_a=True) + total * base, gradient

    return run(weights, value, table)


def _at_the_end(length_q, length_k, *settings):
    """The last query stands at the last key."""
    return Diagonals(length_q, length_k, length_k - length_q, *settings)


def _of_table(by_label, x, table, total, causal):
    """The gradient of a table, of whose rows come `by_labelᵀ·rows`, and of whose base comes `total`."""
    heads = [0] if len(table.shape) == 3 else [0, 1]
    rows = tf.reduce_sum(tf.matmul(by_label, x), heads)
    base = tf.zeros_like(rows[..., :1, :])
    if total is not None:
        base = tf.reduce_sum(tf.matmul(total, x, transpose_a=True), heads)
    return gradient_of_table(rows, base, causal)
