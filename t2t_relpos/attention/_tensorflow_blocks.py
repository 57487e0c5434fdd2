"""The loops of attention block by block, and its gradient.

Heads are taken in groups, their queries in blocks: all scores of a block fit into a processor's caches, so that the many passes
over them cost little. Relative terms are read and written along diagonals. The gradient computes a block's weights again, unless
they are kept.
"""

from typing import NamedTuple

import tensorflow as tf

from t2t_relpos.attention._tensorflow_diagonals import gradient_of_table, relative_rows


class _Group(NamedTuple):
    """What the blocks of a group of heads share: rows `[G, X, H]`, and tables as rows by label and the row of all other keys."""

    number: tf.Tensor
    query: tf.Tensor
    key: tf.Tensor
    value: tf.Tensor
    key_rows: tf.Tensor
    value_rows: tf.Tensor
    value_base: tf.Tensor


class Blocks:
    """Attention of all heads, forward and backward.

    Of G heads at a time, which have one row of the batch: queries `[B·N / G, G, T, H]`, keys `[B·N / G, G, S, H]`;
    tables `[1, 1, 2K + 1, H]` or `[N / G, G, 2K + 1, H]`.

    Args:
        layout: a `Layout`.
        diagonals: the `Diagonals` of a block, wherever.
        masks: a `BlockMasks`.
        drop: a `BlockDropout` or None.
        keep: whether weights are kept for the gradient, instead of memory linear in length.
        exact: the type of scores, weights and sums: float32 at least.
    """

    def __init__(self, layout, diagonals, masks, drop, keep, exact):
        self.layout, self.diagonals, self.masks, self.drop, self.keep, self.exact = layout, diagonals, masks, drop, keep, exact
        # Weights of a query don't always add up to 1.
        self.partial = bool(drop) or masks.blind

    def attend(self, *args):
        """Outputs `[B·N / G, G, T, Hv]` of queries, keys, values, and tables for keys and values."""

        @tf.custom_gradient
        def run(query, key, value, key_table, value_table):
            layout = self.layout
            tensors = layout.pad_queries(query), layout.pad_keys(key), layout.pad_keys(value), key_table, value_table
            outputs, *saved = self._forward(tensors)

            def gradient(upstream):
                queries, *keys, key_table, value_table = self._backward(tensors, outputs, saved, layout.pad_queries(upstream))
                gradients = [queries[:, :, : layout.length_q], *(layout.without_margins(x) for x in keys)]
                gradients += [_of_table(x, like) for x, like in zip((key_table, value_table), tensors[3:])]
                return [tf.cast(x, like.dtype) for x, like in zip(gradients, tensors)]

            return tf.cast(outputs[:, :, : layout.length_q], query.dtype), gradient

        return run(*args)

    def _group(self, tensors, number):
        query, key, value = (x[number] for x in tensors[:3])
        tables = (table[number % tf.shape(table)[0]] for table in tensors[3:])
        (key_rows, _), (value_rows, value_base) = (relative_rows(table, self.layout.causal) for table in tables)
        return _Group(number, query, key, value, key_rows, value_rows, value_base)

    def _part(self, group, block):
        """The queries of a block, the keys and values that it looks at, and its diagonals."""
        end = self.layout.end(block)
        diagonals = self.diagonals.at(self.layout.first(block), end)
        return group.query[:, self.layout.rows(block)], group.key[:, :end], group.value[:, :end], diagonals

    def _spread(self, diagonals, x, y, rows, base=None):
        """`x·yᵀ + x·rowsᵀ` of the labels, and `base` `[G, C, 1]`."""
        by_label = diagonals.product(rows, x, transpose_b=True)
        if base is None or not self.layout.causal:
            return diagonals.spread(x, y, by_label, base)
        return diagonals.spread(x, y, by_label) + base

    def _collect(self, diagonals, pairs, y, rows):
        """The transpose of `_spread`: `pairs·y + pairs·rows` of the labels, and sums of pairs by label."""
        outputs, by_label, _ = diagonals.collect(pairs, y, total=False)
        return outputs + diagonals.product(by_label, rows, transpose_a=True), by_label

    def _weights(self, group, block):
        query, key, _, diagonals = self._part(group, block)
        return self.masks.weights(self._spread(diagonals, query, key, group.key_rows), group.number, block)

    def _factors(self, weights, group, block):
        return self.drop.factors(tf.shape(weights)[0], group.number, block)

    def _forward(self, tensors):
        """Outputs `[B·N / G, G, all blocks, Hv]`, and what the gradient needs.

        That is the sums of every query's weights, those by label of all blocks of all groups in turn, and their weights, if
        they are kept.
        """
        count, num_blocks = tf.shape(tensors[0])[0], self.layout.num_blocks

        def one_group(number, outputs, sums, *of_blocks):
            group = self._group(tensors, number)

            def one_block(block, outputs, sums, *of_blocks):
                weights = self._weights(group, block)
                *results, by_label = self._forward_block(group, block, weights)
                kept = (by_label, weights) if self.keep else (by_label,)
                return *_write((outputs, sums), block, results), *_write(of_blocks, number * num_blocks + block, kept)

            *results, = _loop(num_blocks, one_block, *self._arrays(2, num_blocks), *of_blocks)
            return *_write((outputs, sums), number, map(_joined, results[:2])), *results[2:]

        of_blocks = self._arrays(1 + self.keep, count * num_blocks, infer_shape=False, clear_after_read=False)
        outputs, sums, *of_blocks = _loop(count, one_group, *self._arrays(2, count), *of_blocks)
        return outputs.stack(), sums.stack(), of_blocks

    def _forward_block(self, group, block, weights):
        """Outputs, sums of weights, sums by label."""
        _, _, value, diagonals = self._part(group, block)
        used = weights * self._factors(weights, group, block) if self.drop else weights
        outputs, by_label = self._collect(diagonals, used, value, group.value_rows)
        sums = tf.reduce_sum(used, -1, keepdims=True) if self.partial else tf.ones_like(outputs[..., :1])
        return outputs + sums * tf.cast(group.value_base, self.exact), sums, by_label

    def _backward(self, tensors, outputs, saved, upstream):
        """Gradients of queries, keys and values, and of the tables of every head."""
        count, num_blocks = tf.shape(tensors[0])[0], self.layout.num_blocks
        all_sums, of_blocks = saved

        def one_group(number, *groups):
            group, given = self._group(tensors, number), upstream[number]
            exact = tf.cast(given, self.exact)
            weighted = tf.reduce_sum(exact * outputs[number], -1, keepdims=True)
            of_base = tf.reduce_sum(exact * tf.cast(group.value_base, self.exact), -1, keepdims=True)

            def one_block(block, queries, *sums):
                rows = self.layout.rows(block)
                saved = [x.read(number * num_blocks + block) for x in of_blocks]
                weights = saved[1] if self.keep else self._weights(group, block)
                weights, by_label = (tf.ensure_shape(x, [None, None, None]) for x in (weights, saved[0]))
                parts = self._backward_block(group, block, weights, by_label, *(x[:, rows] for x in (given, weighted, of_base)))
                added = (tf.ensure_shape(x + y, x.shape) for x, y in zip(sums, parts[1:]))
                return *_write((queries,), block, parts[:1]), *added

            labels = [tf.zeros([tf.shape(group.query)[0], *x.shape[1:]], self.exact) for x in (group.key_rows, group.value_rows)]
            zeros = [tf.zeros_like(x, self.exact) for x in (group.key, group.value)] + labels
            queries, *keys, key_rows, value_rows = _loop(num_blocks, one_block, *self._arrays(1, num_blocks), *zeros)
            base = tf.reduce_sum(all_sums[number] * exact, -2, keepdims=True)
            tables = [
                gradient_of_table(rows, base, self.layout.causal)
                for rows, base in ((key_rows, tf.zeros_like(key_rows[:, :1])), (value_rows, base))
            ]
            return _write(groups, number, (_joined(queries), *keys, *tables))

        return [x.stack() for x in _loop(count, one_group, *self._arrays(5, count))]

    def _backward_block(self, group, block, weights, by_label, given, weighted, of_base):
        """Gradients of a block's queries, of keys, of values, and of the tables' rows by label."""
        query, key, value, diagonals = self._part(group, block)
        if self.drop:
            factors = self._factors(weights, group, block)
            used = weights * factors
            changes = self._spread(diagonals, given, value, group.value_rows, of_base) * factors - weighted
        else:
            used, changes = weights, self._spread(diagonals, given, value, group.value_rows, of_base - weighted)
        changes *= weights
        d_query, changes_by_label = self._collect(diagonals, changes, key, group.key_rows)
        keys = (diagonals.product(x, y, transpose_a=True) for x, y in ((changes, query), (used, given)))
        if self.layout.causal:
            keys = (tf.pad(x, [[0, 0], [0, self.layout.width - self.layout.end(block)], [0, 0]]) for x in keys)
        return d_query, *keys, diagonals.product(changes_by_label, query), diagonals.product(by_label, given)

    def _arrays(self, count, size, **settings):
        return [tf.TensorArray(self.exact, size=size, **settings) for _ in range(count)]


def _of_table(by_head, table):
    """Gradients of the table of every head `[B·N / G, G, 2K + 1, H]` -> those of a table."""
    return tf.reduce_sum(tf.reshape(by_head, tf.concat([[-1], tf.shape(table)], 0)), 0)


def _write(arrays, index, values):
    return [array.write(index, value) for array, value in zip(arrays, values)]


def _joined(blocks):
    """Blocks `[G, C, X]` one after the other: `[G, all queries, X]`."""
    blocks = tf.transpose(blocks.stack(), [1, 0, 2, 3])
    return tf.reshape(blocks, [tf.shape(blocks)[0], -1, tf.shape(blocks)[3]])


def _loop(count, body, *state):
    """`state = body(i, *state)` for i = 0 … count - 1."""
    result = tf.while_loop(
        lambda i, *_: i < count, lambda i, *state: (i + 1, *body(i, *state)), (0, *state), parallel_iterations=1
    )
    return result[1:]
