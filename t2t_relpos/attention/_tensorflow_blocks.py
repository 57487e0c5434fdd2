"""The loops of attention block by block, and its gradient.

Heads are taken in groups, their queries in blocks: all scores of a block fit into a processor's caches, so that the many passes
over them cost little. Relative terms are read and written along diagonals. The gradient computes a block's weights again, unless
they are kept.
"""

from typing import NamedTuple

import tensorflow as tf

from t2t_relpos.attention._tensorflow_diagonals import gradient_of_table, relative_rows


class _Group(NamedTuple):
    """What the blocks of a group of heads share: rows `[G, X, H]`, tables as rows by label and their base, scores `[G, L, T]` by label."""

    number: tf.Tensor
    query: tf.Tensor
    key: tf.Tensor
    value: tf.Tensor
    key_rows: tf.Tensor
    value_rows: tf.Tensor
    value_base: tf.Tensor
    by_label: tf.Tensor


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
        self._product = diagonals.product
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
        return _Group(number, query, key, value, key_rows, value_rows, value_base, self._product(key_rows, query, transpose_b=True))

    def _part(self, group, block):
        """The queries of a block, the keys and values that it looks at, and its diagonals."""
        end = self.layout.end(block)
        diagonals = self.diagonals.at(self.layout.first(block), end)
        return group.query[:, self.layout.rows(block)], group.key[:, :end], group.value[:, :end], diagonals

    def _weights(self, group, block):
        query, key, _, diagonals = self._part(group, block)
        scores = diagonals.spread(query, key, group.by_label[..., self.layout.rows(block)])
        return self.masks.weights(scores, group.number, block)

    def _factors(self, weights, group, block):
        return self.drop.factors(tf.shape(weights)[0], group.number, block)

    def _forward(self, tensors):
        """Outputs `[B·N / G, G, all blocks, Hv]`, and what the gradient needs.

        That is sums of weights, all of a query's and by label; and the weights of all blocks of all groups in turn, if they are kept.
        """
        count, num_blocks = tf.shape(tensors[0])[0], self.layout.num_blocks

        def one_group(number, *state):
            group = self._group(tensors, number)

            def one_block(block, *state):
                weights = self._weights(group, block)
                kept = _write(state[3:], number * num_blocks + block, [weights]) if self.keep else []
                return *_write(state[:3], block, self._forward_block(group, block, weights)), *kept

            outputs, sums, by_label, *kept = _loop(num_blocks, one_block, *self._arrays(3, num_blocks), *state[3:])
            outputs, sums, by_label = _joined(outputs), _joined(sums), _joined_labels(by_label, self.diagonals.num_labels)
            outputs += self._product(by_label, group.value_rows, transpose_a=True) + sums * tf.cast(group.value_base, self.exact)
            return *_write(state[:3], number, (outputs, sums, by_label)), *kept

        of_blocks = self._arrays(1, count * num_blocks, infer_shape=False, clear_after_read=False) if self.keep else []
        results = _loop(count, one_group, *self._arrays(3, count), *of_blocks)
        return *(x.stack() for x in results[:3]), results[3:]

    def _forward_block(self, group, block, weights):
        """Outputs without relative rows, sums of weights, sums by label."""
        _, _, value, diagonals = self._part(group, block)
        used = weights * self._factors(weights, group, block) if self.drop else weights
        outputs, by_label, _ = diagonals.collect(used, value, total=False)
        return outputs, tf.reduce_sum(used, -1, keepdims=True) if self.partial else tf.ones_like(outputs[..., :1]), by_label

    def _backward(self, tensors, outputs, saved, upstream):
        """Gradients of queries, keys and values, and of the tables of every head."""
        count, num_blocks = tf.shape(tensors[0])[0], self.layout.num_blocks

        def one_group(number, *groups):
            group, given = self._group(tensors, number), upstream[number]
            sums, by_label = saved[0][number], saved[1][number]
            exact = tf.cast(given, self.exact)
            weighted = tf.reduce_sum(exact * outputs[number], -1, keepdims=True)
            of_base = tf.reduce_sum(exact * tf.cast(group.value_base, self.exact), -1, keepdims=True)
            of_rows = self._product(group.value_rows, given, transpose_b=True)

            def one_block(block, queries, by_labels, *keys):
                rows = self.layout.rows(block)
                weights = saved[2][0].read(number * num_blocks + block) if self.keep else self._weights(group, block)
                of_queries = given[:, rows], of_rows[..., rows], weighted[:, rows], of_base[:, rows]
                *results, d_key, d_value = self._backward_block(group, block, tf.ensure_shape(weights, [None, None, None]), *of_queries)
                keys = (tf.ensure_shape(x + y, x.shape) for x, y in zip(keys, (d_key, d_value)))
                return *_write((queries, by_labels), block, results), *keys

            zeros = [tf.zeros_like(x, self.exact) for x in (group.key, group.value)]
            queries, by_labels, *keys = _loop(num_blocks, one_block, *self._arrays(2, num_blocks), *zeros)
            by_labels = _joined_labels(by_labels, self.diagonals.num_labels)
            queries = _joined(queries) + self._product(by_labels, group.key_rows, transpose_a=True)
            key_rows, value_rows = self._product(by_labels, group.query), self._product(by_label, given)
            base = tf.reduce_sum(sums * exact, -2, keepdims=True)
            tables = [
                gradient_of_table(rows, base, self.layout.causal)
                for rows, base in ((key_rows, tf.zeros_like(key_rows[:, :1])), (value_rows, base))
            ]
            return _write(groups, number, (queries, *keys, *tables))

        return [x.stack() for x in _loop(count, one_group, *self._arrays(5, count))]

    def _backward_block(self, group, block, weights, given, of_rows, weighted, of_base):
        """Gradients of a block's queries without relative rows, of its scores by label, of keys, of values."""
        query, key, value, diagonals = self._part(group, block)
        used = weights
        if self.drop:
            factors = self._factors(weights, group, block)
            used = weights * factors
            changes = self._changes(diagonals, given, value, of_rows, of_base) * factors - weighted
        else:
            changes = self._changes(diagonals, given, value, of_rows, of_base - weighted)
        changes *= weights
        d_query, by_label, _ = diagonals.collect(changes, key, total=False)
        keys = [self._product(x, y, transpose_a=True) for x, y in ((changes, query), (used, given))]
        if self.layout.causal:
            keys = [tf.pad(x, [[0, 0], [0, self.layout.width - self.layout.end(block)], [0, 0]]) for x in keys]
        return d_query, by_label, *keys

    def _changes(self, diagonals, given, value, of_rows, of_query):
        """The gradient of weights, of whose queries `[G, C, 1]` is a part for all keys."""
        if self.layout.causal or given.dtype != self.exact:
            return diagonals.spread(given, value, of_rows) + of_query
        # In columns that there are anyway; not in those of 16 bits, which would round it the same way for all keys.
        return diagonals.spread(given, value, of_rows, of_query)

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


def _joined_labels(blocks, num_labels):
    """The same of `[G, L, C]`: `[G, L, all queries]`."""
    blocks = tf.transpose(blocks.stack(), [1, 2, 0, 3])
    return tf.reshape(blocks, [tf.shape(blocks)[0], num_labels, -1])


def _loop(count, body, *state):
    """`state = body(i, *state)` for i = 0 … count - 1."""
    result = tf.while_loop(
        lambda i, *_: i < count, lambda i, *state: (i + 1, *body(i, *state)), (0, *state), parallel_iterations=1
    )
    return result[1:]
