"""Attention of all pairs at once on TensorFlow, relative terms along diagonals of their matrix, with a gradient of its own.

The gradient of a softmax takes from every entry what all keys of a query have in common: that is known from the outputs alone, and is
a column of a product that is there anyway. What passes over all pairs is what costs, and little else does here.
"""

import tensorflow as tf
from keras import ops

from t2t_relpos.attention import _tensorflow_dropout
from t2t_relpos.attention._tensorflow_diagonals import Band, Diagonals, gradient_of_table, relative_rows
from t2t_relpos.attention._tensorflow_masks import HIDDEN

# Up to so many keys stretches are short: long ones make fewer columns, and more diagonals at their edges.
LONGEST_SHORT = 256
SHORT_STRETCH, LONG_STRETCH = 16, 32
# From so many positions on (of pairs: from its square) this is faster than rows looked up for all pairs.
SHORTEST = 96
# Where causal there are no stretches, and it pays sooner.
SHORTEST_CAUSAL = 40
# Up to so many positions it needs no more memory than plain attention, and is faster than blocks, which leave out what is hidden.
LONGEST = 1024
LONGEST_CAUSAL = 256


def longest(causal):
    """Up to how many positions (of pairs: its square) this is faster than blocks."""
    return LONGEST_CAUSAL if causal else LONGEST


def is_possible(query, key, reach, query_offset, causal):
    """Whether diagonals are the fastest way for these lengths, and there are some: where the last query stands at the last key.

    Args: as those of `attend`; `reach` is K.

    Returns:
        a bool, or a scalar tensor.
    """
    length_q, length_k = ops.shape(query)[2], ops.shape(key)[2]
    causal, stretch = _settings(length_k, reach, causal)
    shortest = SHORTEST_CAUSAL if causal else SHORTEST
    return (
        (reach > 0)
        & (length_q * length_k >= shortest**2)
        & (length_q >= reach + (0 if causal else stretch))
        & (length_k >= length_q)
        & (query_offset == length_k - length_q)
    )


def attend(query, key, value, key_table, value_table, *, reach, mask, blind, causal, rate, seed):
    """The outputs of `attend` where that `is_possible`.

    Args:
        query, key, value, key_table, value_table: as those of `attend`.
        reach: K.
        mask: bool, broadcasts to `[B, N, T, S]`, all that hides keys; or None.
        blind: whether it may hide all keys from a query.
        causal: whether it hides those after a query.
        rate: of dropout, or None.
        seed: int32 `[2]`, of dropout.

    Returns:
        outputs `[B, N, T, Hv]`.
    """
    run = _attend.python_function if tf.executing_eagerly() else _attend
    tensors = [x if x is None else tf.convert_to_tensor(x) for x in (query, key, value, key_table, value_table, mask)]
    return run(*tensors, reach, blind, causal, rate, seed)


def _settings(length_k, reach, causal):
    """(whether later keys are nobody's concern, stretch)."""
    # A single diagonal is another thing for TensorFlow; what is computed of hidden keys does no harm.
    causal = causal and reach > 1
    if causal:
        return causal, SHORT_STRETCH
    if isinstance(length_k, int):
        return causal, SHORT_STRETCH if length_k <= LONGEST_SHORT else LONG_STRETCH
    return causal, tf.where(length_k <= LONGEST_SHORT, SHORT_STRETCH, LONG_STRETCH)


# A function of its own, so that in a graph all layers share what is traced.
@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _attend(query, key, value, key_table, value_table, mask, reach, blind, causal, rate, seed):
    length_q, length_k = ops.shape(query)[2], ops.shape(key)[2]
    settings = reach, *_settings(length_k, reach, causal), query.dtype
    first = length_k - length_q
    diagonals = Diagonals(first + tf.range(length_q), *settings)
    band = Band(diagonals, first, length_q, length_k)
    # Weights of a query without keys are of no meaning: its outputs are zeros instead, and so is what comes back.
    sees = tf.cast(tf.reduce_any(mask, -1, keepdims=True), query.dtype) if blind else None

    @tf.custom_gradient
    def run(query, key, value, *tables):
        tables = iter(tables)
        of_key, of_value = (_Terms(diagonals, band, x if x is None else next(tables)) for x in (key_table, value_table))
        weights = _softmax(of_key.spread(query, key), mask)
        used = weights if rate is None else weights * _tensorflow_dropout.factors(tf.shape(weights), rate, seed, weights.dtype)
        total = tf.ones([], used.dtype) if rate is None else tf.reduce_sum(used, -1, keepdims=True)
        near = of_value.near(used)
        by_label = of_value.collect(used, near)
        outputs = tf.matmul(used, value) + of_value.outputs(by_label, total)
        outputs = outputs * sees if blind else outputs

        def gradient(upstream):
            upstream = upstream * sees if blind else upstream
            changes, near_changes = _changes(of_value, weights, used, near, value, outputs, upstream, rate)
            changed = of_key.collect(changes, near_changes)
            d_query = tf.matmul(changes, key) + of_key.outputs(changed, None)
            d_key, d_value = tf.matmul(changes, query, transpose_a=True), tf.matmul(used, upstream, transpose_a=True)
            d_tables = of_key.gradient(changed, query, None), of_value.gradient(by_label, upstream, total)
            return d_query, d_key, d_value, *(x for x in d_tables if x is not None)

        return outputs, gradient

    return run(query, key, value, *(x for x in (key_table, value_table) if x is not None))


def _softmax(scores, mask):
    """Softmax in float32 at least, of the entries that may be attended to."""
    exact = tf.cast(scores, _exact(scores))
    if mask is not None:
        exact = tf.where(mask, exact, tf.cast(HIDDEN, exact.dtype))
    return tf.cast(tf.nn.softmax(exact), scores.dtype)


def _exact(x):
    return tf.float32 if x.dtype.size == 2 else x.dtype


def _changes(of_value, weights, used, near, value, outputs, upstream, rate):
    """The gradient of the scores, and of those by diagonal, or None where there is no table for values."""
    exact = _exact(weights)
    upstream_exact = tf.cast(upstream, exact)
    of_query = of_value.base_of(upstream_exact)
    weighted = tf.reduce_sum(upstream_exact * tf.cast(outputs, exact), -1, keepdims=True)
    if exact != weights.dtype:
        # Not as a column of 16 bits, which would round it the same way for all keys.
        pairs, added = of_value.multiplied(upstream, value)
        changes = (tf.cast(pairs, exact) + of_query) * tf.cast(used, exact) - weighted * tf.cast(weights, exact)
        changes = tf.cast(changes, weights.dtype)
    elif rate is None:
        pairs, added = of_value.multiplied(upstream, value, of_query - weighted)
        changes = pairs * weights
    else:
        pairs, added = of_value.multiplied(upstream, value, of_query)
        changes = pairs * used - weighted * weights
    # What is near is added last, where it is read for its sums anyway.
    return (changes, None) if added is None else of_value.band.add(changes, added * near)


class _Terms:
    """What a table adds to a matrix of all pairs `[B, N, T, S]`.

    Args:
        diagonals: the `Diagonals` of all queries.
        band: the `Band` of the matrix.
        table: `[2K + 1, H]` or `[N, 2K + 1, H]`; nothing is added by None.
    """

    def __init__(self, diagonals, band, table):
        self.diagonals, self.band, self.table = diagonals, band, table
        if table is not None:
            self.rows, self.base = relative_rows(table, diagonals.causal)

    def multiplied(self, x, y, base=None):
        """(`x·yᵀ`, and what is far, relative to the table's base, and `base` `[B, N, T, 1]` for all keys; what is near, by diagonal)."""
        if self.table is None:
            pairs = tf.matmul(x, y, transpose_b=True)
            return pairs if base is None else pairs + base, None
        by_label = tf.matmul(self.rows, x, transpose_b=True)
        if base is not None or not self.diagonals.causal:
            x, y = self.diagonals.with_far(x, by_label, base), self.band.with_columns(y)
        return tf.matmul(x, y, transpose_b=True), self.diagonals.along(by_label)

    def spread(self, x, y):
        """`x·yᵀ` and all terms, relative to the table's base."""
        pairs, near = self.multiplied(x, y)
        return pairs if near is None else self.band.add(pairs, near)[0]

    def base_of(self, x):
        """What `spread` leaves out: `[B, N, T, 1]`."""
        # No product with a column: of one head that is not safe, see `times_table`.
        return tf.zeros_like(x[..., :1]) if self.table is None else tf.reduce_sum(x * tf.cast(self.base, x.dtype), -1, keepdims=True)

    def near(self, pairs):
        """Those that have a diagonal, by diagonal."""
        return None if self.table is None else self.band.read(pairs)

    def collect(self, pairs, near=None):
        """Sums of pairs by label: the transpose of `spread`; `near` if that is known."""
        if self.table is None:
            return None
        near = self.near(pairs) if near is None else near
        return self.diagonals.by_label(near, None if self.diagonals.causal else self.band.far(pairs))

    def outputs(self, by_label, total):
        """Rows of the table times what was collected, and its base times `total`, if there is any."""
        if self.table is None:
            return 0
        outputs = tf.matmul(by_label, self.rows, transpose_a=True)
        return outputs if total is None else outputs + total * self.base

    def gradient(self, by_label, x, total):
        """The table's gradient, `x` being what stands in for the other factor of `outputs`."""
        if self.table is None:
            return None
        heads = [0] if len(self.table.shape) == 3 else [0, 1]
        rows = tf.reduce_sum(tf.matmul(by_label, x), heads)
        base = tf.zeros_like(rows[..., :1, :]) if total is None else tf.reduce_sum(tf.reduce_sum(total * x, -2, keepdims=True), heads)
        return gradient_of_table(rows, base, self.diagonals.causal)
