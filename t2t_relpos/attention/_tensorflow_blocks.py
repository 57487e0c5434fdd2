"""The loops of attention block by block, and its gradient.

Heads are taken in groups, their queries in blocks. Outside of a block's window all
keys on a side have the same label, so that its row can be added to keys and values
beforehand. Rows are taken relative to row 0 (a constant per query changes no
softmax): then the left side is plain attention, and only the right needs keys and
values of its own. The gradient computes a block's weights again, unless they are
kept.
"""

from typing import NamedTuple

import tensorflow as tf

from t2t_relpos.attention._tensorflow_masks import HIDDEN, both_sides


class _Group(NamedTuple):
    """What the blocks of a group of heads share. `keys` and `values` stand for those right and left of a window."""

    number: tf.Tensor
    query: tf.Tensor
    key: tf.Tensor
    value: tf.Tensor
    key_table: tf.Tensor
    value_table: tf.Tensor
    constant: tf.Tensor
    keys: tf.Tensor
    values: tf.Tensor
    by_label: tf.Tensor


class Blocks:
    """Attention of all heads, forward and backward.

    Of G heads at a time, which have one row of the batch: queries `[B·N / G, G, T, H]`, keys `[B·N / G, G, S, H]`;
    tables `[1, 1, 2K + 1, H]` or `[N / G, G, 2K + 1, H]`.

    Args:
        window: a `Window`.
        masks: a `BlockMasks`.
        drop: a `BlockDropout` or None.
        keep: whether weights are kept for the gradient, instead of memory linear in length.
        exact: the type of scores, weights and sums: float32 at least.
        given: the type of queries, in which matrices are multiplied.
    """

    def __init__(self, window, masks, drop, keep, exact, given):
        self.window, self.masks, self.drop, self.keep = window, masks, drop, keep
        self.exact, self.given = exact, given

    def attend(self, *args):
        """Outputs `[B·N / G, G, T, Hv]` of queries, keys, values, and tables for keys and values."""

        @tf.custom_gradient
        def run(query, key, value, key_table, value_table):
            tables = self._relative(key_table), self._relative(value_table), value_table[..., :1, :]
            tensors = self._padded(query), key, value, *tables
            outputs, *saved = self._forward(tensors)

            def gradient(upstream):
                gradients = self._backward(tensors, outputs, saved, self._padded(upstream))
                return self._as_given(gradients, (query, key, value, key_table, value_table))

            return tf.cast(outputs[:, :, : self.window.length_q], query.dtype), gradient

        return run(*args)

    def _padded(self, rows):
        """Whole blocks of queries."""
        missing = self.window.num_blocks * self.window.block - self.window.length_q
        return tf.pad(rows, [[0, 0], [0, 0], [0, missing], [0, 0]])

    def _relative(self, table):
        """Rows that occur, relative to row 0."""
        return table[..., : self.window.num_labels, :] - table[..., :1, :]

    def _product(self, x, y, **transposed):
        """A product of matrices in the type of the query; its result in float32 at least."""
        given = self.given
        return tf.cast(tf.matmul(tf.cast(x, given), tf.cast(y, given), **transposed), self.exact)

    def _group(self, tensors, number):
        query, key, value = (x[number] for x in tensors[:3])
        key_table, value_table, constant = (table[number % tf.shape(table)[0]] for table in tensors[3:])
        sides = both_sides(self.window, key, key_table[:, -1:]), both_sides(self.window, value, value_table[:, -1:])
        by_label = self._product(query, key_table, transpose_b=True)
        return _Group(number, query, key, value, key_table, value_table, constant, *sides, by_label)

    def _around(self, x, sides, block):
        """What belongs to the keys inside, and outside of the window of a block."""
        first, end = self.window.keys(block)
        return x[:, first:end], self.window.outside(sides, block)

    def _scores(self, group, block):
        """Scores of a block inside, and outside of its window."""
        rows = self.window.rows(block)
        inside, outside = (
            self._product(group.query[:, rows], keys, transpose_b=True) for keys in self._around(group.key, group.keys, block)
        )
        inside += self.window.spread(group.by_label[:, rows], block)
        return self.masks.hide(inside, outside, group.number, block)

    def _forward(self, tensors):
        """Outputs `[B·N / G, G, T, Hv]`, and what the gradient needs.

        That is what makes weights of scores or of exponentials, sums of weights, weights by label; and of all blocks of all
        groups in turn the exponentials, if they are kept.
        """
        count, num_blocks = tf.shape(tensors[0])[0], self.window.num_blocks

        def one_group(number, *state):
            group = self._group(tensors, number)

            def one_block(block, *state):
                results, exponentials = self._forward_block(group, block)
                kept = _write(state[4:], number * num_blocks + block, exponentials) if self.keep else []
                return *_write(state[:4], block, results), *kept

            results = _loop(num_blocks, one_block, *self._arrays(4, num_blocks), *state[4:])
            outputs, normalizer, kept, labels = (_joined(blocks) for blocks in results[:4])
            outputs += self._product(labels, group.value_table) + kept * group.constant
            return *_write(state[:4], number, (outputs, normalizer, kept, labels)), *results[4:]

        of_blocks = self._arrays(2, count * num_blocks, infer_shape=False, clear_after_read=False) if self.keep else []
        results = _loop(count, one_group, *self._arrays(4, count), *of_blocks)
        return *(x.stack() for x in results[:4]), results[4:]

    def _forward_block(self, group, block):
        """As `_forward`, of a block: results, the outputs without relative rows inside of the window; exponentials."""
        inside, outside = self._scores(group, block)
        largest = tf.maximum(tf.maximum(_largest(inside), _largest(outside)), tf.cast(HIDDEN / 10, self.exact))
        exponentials = inside, outside = tf.exp(inside - largest), tf.exp(outside - largest)
        total = _sum(inside) + _sum(outside)
        scale = tf.math.divide_no_nan(tf.ones([], self.exact), total)
        normalizer = scale if self.keep else tf.where(total > 0, largest + tf.math.log(total), -HIDDEN)
        kept = total
        if self.drop:
            factors = self.drop.factors(tf.shape(inside)[0], group.number, block)
            inside, outside = inside * factors[0], outside * factors[1]
            kept = _sum(inside) + _sum(outside)
        values = self._around(group.value, group.values, block)
        outputs = self._product(inside, values[0]) + self._product(outside, values[1])
        return (outputs * scale, normalizer, kept * scale, self.window.collapse(inside, block) * scale), exponentials

    def _weights(self, group, block, normalizer, exponentials):
        """The weights of a block inside, and outside of its window: computed again, or from what was kept."""
        if not self.keep:
            return [tf.exp(x - normalizer) for x in self._scores(group, block)]
        number = group.number * self.window.num_blocks + block
        return [tf.ensure_shape(x.read(number), [None, None, None]) * normalizer for x in exponentials]

    def _backward(self, tensors, outputs, saved, upstream):
        """Gradients of queries, keys, values, and by head of relative rows of keys, of values, and of the constant row."""
        count, num_blocks = tf.shape(tensors[0])[0], self.window.num_blocks

        def one_group(number, *groups):
            group, given = self._group(tensors, number), upstream[number]
            normalizer, kept, labels = (x[number] for x in saved[:3])
            weighted = _sum(tf.cast(given, self.exact) * outputs[number])
            of_constant = _sum(tf.cast(given, self.exact) * group.constant)
            given_by_label = self._product(given, group.value_table, transpose_b=True)
            of_queries = given, given_by_label, kept, weighted, of_constant

            def one_block(block, queries, by_labels, *sums):
                rows = self.window.rows(block)
                weights = self._weights(group, block, normalizer[:, rows], saved[3])
                d_query, by_label, *parts = self._backward_block(group, block, weights, *(x[:, rows] for x in of_queries))
                return *_write((queries, by_labels), block, (d_query, by_label)), *(tf.ensure_shape(x + y, x.shape) for x, y in zip(sums, parts))

            # Of each head, where the tables are those of all.
            zeros = [tf.zeros_like(x, self.exact) for x in (group.key, group.value, group.key[:, :1], group.value[:, :1])]
            queries, by_labels, *sums = _loop(num_blocks, one_block, *self._arrays(2, num_blocks), *zeros)
            d_key, d_value, right_key, right_value = sums
            by_labels = _joined(by_labels)
            gradients = (
                _joined(queries) + self._product(by_labels, group.key_table),
                d_key,
                d_value,
                _with_last(self._product(by_labels, group.query, transpose_a=True), right_key),
                _with_last(self._product(labels, given, transpose_a=True), right_value),
                self._product(kept, given, transpose_a=True),
            )
            return _write(groups, number, gradients)

        return [x.stack() for x in _loop(count, one_group, *self._arrays(6, count))]

    def _backward_block(self, group, block, weights, given, given_by_label, kept, weighted, of_constant):
        """Gradients of a block's queries without relative rows, of its scores by label, of keys, values, last rows of the tables."""
        window, query = self.window, group.query[:, self.window.rows(block)]
        used = weights
        values = self._around(group.value, group.values, block)
        changes = [self._product(given, x, transpose_b=True) for x in values]
        changes[0] += window.spread(given_by_label, block)
        if self.drop:
            factors = self.drop.factors(tf.shape(query)[0], group.number, block)
            used = [x * f for x, f in zip(weights, factors)]
            changes = [(x + of_constant) * f - weighted for x, f in zip(changes, factors)]
        else:
            # What is the same for all keys of a query changes no weight.
            changes = [x - (weighted - of_constant * kept) for x in changes]
        changes = [x * w for x, w in zip(changes, weights)]
        d_values = [self._product(x, given, transpose_a=True) for x in used]
        d_keys = [self._product(x, query, transpose_a=True) for x in changes]
        keys = self._around(group.key, group.keys, block)
        d_query = self._product(changes[0], keys[0]) + self._product(changes[1], keys[1])
        whole = [window.in_order(outside, inside, block) for inside, outside in (d_keys, d_values)]
        lasts = [tf.reduce_sum(window.right(outside, block), 1, keepdims=True) for _, outside in (d_keys, d_values)]
        return d_query, window.collapse(changes[0], block), *whole, *lasts

    def _as_given(self, gradients, inputs):
        """Gradients of the tensors that came in."""
        *rows, key_table, value_table, constant = gradients
        rows[0] = rows[0][:, :, : self.window.length_q]
        tables = self._of_table(key_table, 0.0, inputs[3]), self._of_table(value_table, constant, inputs[4])
        return [tf.cast(x, like.dtype) for x, like in zip((*rows, *tables), inputs)]

    def _of_table(self, relative, constant, table):
        """Gradients of relative rows by head `[B·N / G, G, L, H]` -> those of the table."""
        first = constant - tf.reduce_sum(relative[..., 1:, :], -2, keepdims=True)
        rows = tf.concat([first, relative[..., 1:, :]], -2)
        heads, row = tf.shape(table)[:2], tf.shape(rows)[2:]
        rows = tf.reduce_sum(tf.reshape(rows, tf.concat([[-1], heads, row], 0)), 0)
        return tf.pad(rows, [[0, 0], [0, 0], [0, table.shape[2] - self.window.num_labels], [0, 0]])

    def _arrays(self, count, size, **settings):
        return [tf.TensorArray(self.exact, size=size, **settings) for _ in range(count)]


def _write(arrays, index, values):
    return [array.write(index, value) for array, value in zip(arrays, values)]


def _sum(x):
    return tf.reduce_sum(x, -1, keepdims=True)


def _largest(x):
    return tf.reduce_max(x, -1, keepdims=True)


def _joined(blocks):
    """Blocks `[G, C, X]` one after the other: `[G, all queries, X]`."""
    blocks = tf.transpose(blocks.stack(), [1, 0, 2, 3])
    return tf.reshape(blocks, [tf.shape(blocks)[0], -1, tf.shape(blocks)[3]])


def _with_last(rows, last):
    return tf.concat([rows[:, :-1], rows[:, -1:] + last], 1)


def _loop(count, body, *state):
    """`state = body(i, *state)` for i = 0 … count - 1."""
    result = tf.while_loop(
        lambda i, *_: i < count, lambda i, *state: (i + 1, *body(i, *state)), (0, *state), parallel_iterations=1
    )
    return result[1:]
