"""Relative terms on TensorFlow: read and written along diagonals of a matrix of pairs, be it of all pairs or of a block of queries.

A relative position is a diagonal. Only the 2K nearest ones have rows of their own; what all keys further away have in
common is added by the product of queries and keys itself, from columns that say in which stretch a key stands.
"""

import tensorflow as tf

from t2t_relpos.attention.products import times_table


class Diagonals:
    """What queries `[.., T, H]` have in common with all keys: entries by label and by diagonal.

    A row of a table is told apart from the row that keys furthest to the right have, which is its "base" (to the left,
    where `causal`): what is the same for all keys of a query is added once. "By label" are therefore `[.., L, T]`
    entries of the L = 2K other labels (K where `causal`), from the right to the left.

    All keys that are further away than K to the left of a query have the label 0. Keys stand in stretches: "far" is what a
    query has of whole stretches; what is left of the last one are D - L diagonals more, "by diagonal" `[.., D, T]`.

    Args:
        places: int32 key positions of queries, `[.., T]`: one after the other.
        reach: K, at least 1, or 2 where `causal`.
        causal: whether keys after a query are hidden, and what is written there is nobody's concern.
        stretch: number of keys of a stretch, at least 2, an int or a scalar tensor; without meaning where `causal`.
        dtype: of the entries.
    """

    def __init__(self, places, reach, causal, stretch, dtype):
        self.causal, self.reach, self.stretch, self.dtype = causal, reach, stretch, dtype
        self.num_labels = reach if causal else 2 * reach
        if causal:
            return
        # So many keys are further away than those that have a diagonal.
        further = places - reach
        self._edge = tf.cast(
            tf.range(1, stretch)[:, None] <= (further % stretch)[..., None, :], dtype
        )
        whole = further // stretch
        first = _first_column(further[..., :1], stretch)
        # The last for what is far from none.
        self.num_columns = tf.maximum(tf.reduce_max(whole[..., -1:] - first) + 1, 1)
        self._whole = tf.cast(tf.range(self.num_columns) < (whole - first)[..., None], dtype)

    def along(self, by_label):
        """`[.., L, T]` -> by diagonal, without what is far."""
        return (
            by_label
            if self.causal
            else tf.concat([by_label, by_label[..., -1:, :] * self._edge], -2)
        )

    def with_far(self, x, by_label, base=None):
        """`[.., T, H]` with columns of what is far, and of `base` `[.., T, 1]`, which is added to all keys of a query."""
        if not self.causal:
            far = by_label[..., -1, :, None] * self._whole
            base = far if base is None else far + base
        return x if base is None else tf.concat([x, tf.cast(base, x.dtype)], -1)

    def by_label(self, entries, far=None):
        """By diagonal, and far `[.., 1, T]`, -> `[.., L, T]`: the transpose of `along` and `with_far`."""
        if self.causal:
            return entries
        near, last, edge = tf.split(entries, [self.num_labels - 1, 1, self.stretch - 1], -2)
        return tf.concat(
            [near, last + far + tf.reduce_sum(edge * self._edge, -2, keepdims=True)], -2
        )


class Band:
    """The diagonals of a matrix of pairs `[.., T, S]`.

    Args:
        diagonals: the `Diagonals` of its queries.
        first: key position of query 0, an int or a scalar tensor. Each of the diagonals must have an entry, one of them one of
            every query, and the last query at most `reach` keys after the last of them.
        length_q: T, an int or a scalar tensor.
        length_k: S, an int or a scalar tensor.
    """

    def __init__(self, diagonals, first, length_q, length_k):
        below, above = extent(diagonals.reach, diagonals.causal, diagonals.stretch)
        self._range = first - below + 1, first + above - 1
        if diagonals.causal:
            self._columns = tf.ones([length_k, 1], diagonals.dtype)
            return
        stretch = self._stretch = diagonals.stretch
        further = first - diagonals.reach
        self._number = tf.range(length_k) // stretch
        number = tf.clip_by_value(
            self._number - _first_column(further, stretch), 0, diagonals.num_columns - 1
        )
        self._columns = tf.one_hot(number, diagonals.num_columns, dtype=diagonals.dtype)
        self._num_whole = length_k // stretch
        self._may_have_rest = not (
            isinstance(length_k, int) and isinstance(stretch, int) and length_k % stretch == 0
        )
        whole = (further + tf.range(length_q)) // stretch
        self._whole = tf.cast(tf.range(self._num_whole) < whole[:, None], diagonals.dtype)

    def with_columns(self, y):
        """`[.., S, H]` with columns for those of `Diagonals.with_far`."""
        columns = tf.cast(self._columns, y.dtype)
        return tf.concat(
            [y, tf.broadcast_to(columns, tf.concat([tf.shape(y)[:-1], tf.shape(columns)[1:]], 0))],
            -1,
        )

    def add(self, pairs, entries):
        """(pairs with entries by diagonal added to them, what they have by diagonal then)."""
        entries += self.read(pairs)
        # Of a shape that is known in part, TensorFlow's inference takes the diagonals for a single one.
        written = (
            entries
            if pairs.shape.is_fully_defined()
            else tf.compat.v1.placeholder_with_default(entries, None)
        )
        return tf.linalg.set_diag(pairs, written, k=self._range, align="LEFT_RIGHT"), entries

    def read(self, pairs):
        """Entries by diagonal, whatever the alignment's name: all of a query's stand in one column."""
        return tf.linalg.diag_part(pairs, k=self._range, align="LEFT_RIGHT")

    def far(self, pairs, by_product=False):
        """Sums of what is far of every query, `[.., 1, T]`.

        Args:
            pairs: `[.., T, S]`; `[B, N, T, S]` for a product.
            by_product: whether a product may sum them where there may be a rest of keys after the last whole stretch: it takes less than
                copying all others, where stretches are few.
        """
        if by_product and self._may_have_rest:
            sums = times_table(pairs, tf.one_hot(self._number, self._num_whole, dtype=pairs.dtype))
        else:
            pairs = pairs[..., : self._num_whole * self._stretch]
            shape = tf.concat([tf.shape(pairs)[:-1], [self._num_whole, self._stretch]], 0)
            sums = tf.reduce_sum(tf.reshape(pairs, shape), -1)
        return tf.reduce_sum(sums * self._whole, -1)[..., None, :]


def _first_column(further, stretch):
    """The stretch of the first column, which those before it share: they are far from all queries.

    Args:
        further: so many keys are further away from the first query than those that have a diagonal.
        stretch: number of keys of a stretch.
    """
    return tf.maximum(further // stretch - 1, 0)


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
    parts = (
        [base, rows[..., ::-1, :], tf.zeros_like(rows)] if causal else [rows[..., ::-1, :], base]
    )
    return tf.concat(parts, -2)
