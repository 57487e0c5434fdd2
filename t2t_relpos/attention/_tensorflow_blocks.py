"""The loops of attention block by block, and its gradient.

Heads are taken in groups, their queries in blocks: all scores of a block fit into a processor's caches, so that the many passes
over them cost little. What needs no scores is computed for all blocks at once. The gradient computes a block's weights again,
unless they are kept.
"""

from typing import NamedTuple

import tensorflow as tf

from t2t_relpos.attention._tensorflow_diagonals import Band, gradient_of_table, relative_rows


class _Given(NamedTuple):
    """What the gradient knows of every block's queries.

    Their gradients with columns; what is near, by diagonal; what all keys get, `[.., C, 1]`; and what dropout comes before.
    """

    queries: tf.Tensor
    near: tf.Tensor
    of_query: tf.Tensor | None
    weighted: tf.Tensor


class Blocks:
    """Attention of all heads, forward and backward.

    Of G heads at a time, which have one row of the batch: queries `[groups, G, T, H]`, keys `[groups, G, S, H]`, tables
    `[groups, 1 or G, 2K + 1, H]`. By block are queries `[groups, blocks, G, C, H]`, entries by label `[.., G, L, C]`, by
    diagonal `[.., G, D, C]`.

    Args:
        layout: a `Layout`.
        diagonals: the `Diagonals` of all queries, by block.
        masks: a `BlockMasks`.
        drop: a `BlockDropout` or None.
        product: as `tf.matmul`, which gives `diagonals.dtype`: that of scores, weights and sums, float32 at least.
        keep: whether weights are kept for the gradient, instead of memory linear in length.
    """

    def __init__(self, layout, diagonals, masks, drop, product, keep):
        self.layout, self.diagonals, self.masks, self.drop, self.keep = (
            layout,
            diagonals,
            masks,
            drop,
            keep,
        )
        self._product, self._exact = product, diagonals.dtype
        # Weights of a query don't always add up to 1.
        self._partial = bool(drop) or masks.blind

    def attend(self, *args):
        """Outputs `[groups, G, T, Hv]` of queries, keys, values, and tables for keys and values."""

        @tf.custom_gradient
        def run(query, key, value, key_table, value_table):
            layout = self.layout
            tensors = (
                layout.in_blocks(query),
                layout.pad_keys(key),
                layout.pad_keys(value),
                key_table,
                value_table,
            )
            outputs, *saved = self._forward(tensors)

            def gradient(upstream):
                weighted = tf.reduce_sum(
                    tf.cast(upstream, self._exact) * outputs, -1, keepdims=True
                )
                given = (layout.in_blocks(x) for x in (upstream, weighted))
                queries, *keys, key_table, value_table = self._backward(tensors, saved, *given)
                gradients = [
                    layout.joined(queries),
                    *(layout.without_margins(x) for x in keys),
                    key_table,
                    value_table,
                ]
                return [tf.cast(x, like.dtype) for x, like in zip(gradients, args)]

            return tf.cast(outputs, query.dtype), gradient

        return run(*args)

    def _band(self, block):
        layout = self.layout
        return Band(self.diagonals, layout.first(block), layout.block, layout.end(block))

    def _rows(self, tables):
        """Of every table, rows by label and their base, for all blocks."""
        return [relative_rows(table[:, None], self.layout.causal) for table in tables]

    def _told_apart(self, x, rows, base=None):
        """(queries with columns, entries by diagonal), block after block: what all keys have to know of them."""
        by_label = self._product(rows, x, transpose_b=True)
        return _flat(self.diagonals.with_far(x, by_label, base)), _flat(
            self.diagonals.along(by_label)
        )

    def _pairs(self, band, queries, keys):
        """`[G, C, S]` of a block's queries and keys, and what is far."""
        return self._product(
            queries, keys if self.layout.causal else band.with_columns(keys), transpose_b=True
        )

    def _far(self, band, pairs):
        """Sums of what is far, if anything is."""
        return [] if self.layout.causal else [band.far(pairs)]

    def _weights(self, band, key, told_apart, number, block):
        queries, near = (x[self._at(number, block)] for x in told_apart)
        scores, _ = band.add(self._pairs(band, queries, key[:, : self.layout.end(block)]), near)
        return self.masks.weights(scores, number, block)

    def _factors(self, weights, number, block):
        return self.drop.factors(tf.shape(weights)[0], number, block)

    def _at(self, number, block):
        return number * self.layout.num_blocks + block

    def _forward(self, tensors):
        """Outputs `[groups, G, T, Hv]`, and what the gradient needs.

        That is sums of weights, all of a query's and by label, and near ones, all by block; and the weights of all blocks in turn, if
        they are kept.
        """
        query, key, value, *tables = tensors
        (key_rows, _), (value_rows, value_base) = self._rows(tables)
        told_apart = self._told_apart(query, key_rows)

        def one_block(number, block, state):
            band, end = self._band(block), self.layout.end(block)
            weights = self._weights(band, key[number], told_apart, number, block)
            used = weights * self._factors(weights, number, block) if self.drop else weights
            results = [
                self._product(used, value[number][:, :end]),
                band.read(used),
                *self._far(band, used),
            ]
            results += [tf.reduce_sum(used, -1, keepdims=True)] * self._partial + [
                weights
            ] * self.keep
            return _write(state, self._at(number, block), results)

        def one_group(number, *state):
            return _loop(
                self.layout.num_blocks,
                lambda block, *state: one_block(number, block, state),
                *state,
            )

        arrays = self._arrays(3 - self.layout.causal + self._partial, query)
        kept = (
            self._arrays(1, query, infer_shape=False, clear_after_read=False) if self.keep else []
        )
        results = _loop(tf.shape(query)[0], one_group, *arrays, *kept)
        outputs, *collected = self._stacked(results[: len(arrays)], query)
        sums = collected.pop() if self._partial else tf.ones_like(outputs[..., :1])
        by_label = self.diagonals.by_label(*collected)
        outputs += self._product(by_label, value_rows, transpose_a=True) + sums * tf.cast(
            value_base, self._exact
        )
        return self.layout.joined(outputs), sums, by_label, collected[0], results[len(arrays) :]

    def _backward(self, tensors, saved, given, weighted):
        """Gradients of queries by block, of keys, of values, and of the tables."""
        query, key, value, *tables = tensors
        sums, by_label, near, kept = saved
        (key_rows, _), value_rows = self._rows(tables)
        told_apart = None if self.keep else self._told_apart(query, key_rows)
        of_blocks = self._given(given, weighted, near, *value_rows)
        queries, upstream = _flat(query), _flat(given)

        def one_block(number, block, arrays, keys):
            at, end, band = self._at(number, block), self.layout.end(block), self._band(block)
            weights = (
                kept[0].read(at)
                if self.keep
                else self._weights(band, key[number], told_apart, number, block)
            )
            weights = tf.ensure_shape(weights, [None, None, None])
            used, changes = self._changes(
                band, weights, value[number][:, :end], of_blocks, number, block
            )
            # What is near is added last, where it is read for its sums anyway.
            changes, near_changes = band.add(changes, of_blocks.near[at])
            results = [
                self._product(changes, key[number][:, :end]),
                near_changes,
                *self._far(band, changes),
            ]
            of_keys = (
                self._product(x, y, transpose_a=True)
                for x, y in ((changes, queries[at]), (used, upstream[at]))
            )
            keys = (
                tf.ensure_shape(x + self.layout.with_hidden(y, block), x.shape)
                for x, y in zip(keys, of_keys)
            )
            return *_write(arrays, at, results), *keys

        def one_group(number, *state):
            arrays, of_keys = state[:-2], state[-2:]
            zeros = [tf.zeros_like(x[number], self._exact) for x in (key, value)]
            body = lambda block, *state: one_block(number, block, state[:-2], state[-2:])
            *arrays, d_key, d_value = _loop(self.layout.num_blocks, body, *arrays, *zeros)
            return *arrays, *_write(of_keys, number, (d_key, d_value))

        of_keys = [tf.TensorArray(self._exact, size=tf.shape(key)[0]) for _ in range(2)]
        *results, d_key, d_value = _loop(
            tf.shape(query)[0], one_group, *self._arrays(3 - self.layout.causal, query), *of_keys
        )
        d_query, *collected = self._stacked(results, query)
        changed = self.diagonals.by_label(*collected)
        d_query += self._product(changed, key_rows, transpose_a=True)
        base = tf.reduce_sum(sums * tf.cast(given, self._exact), -2, keepdims=True)
        d_tables = (
            self._of_table(table, self._product(x, y), z)
            for table, x, y, z in zip(
                tables, (changed, by_label), (query, given), (0.0, base), strict=True
            )
        )
        return d_query, d_key.stack(), d_value.stack(), *d_tables

    def _given(self, given, weighted, near, rows, base):
        of_query = tf.reduce_sum(
            tf.cast(given, self._exact) * tf.cast(base, self._exact), -1, keepdims=True
        )
        if not self.drop:
            of_query -= weighted
        # In columns that there are anyway; not in those of 16 bits, which would round it the same way for all keys.
        in_columns = not self.layout.causal and given.dtype == self._exact
        queries, added = self._told_apart(given, rows, of_query if in_columns else None)
        return _Given(
            queries, added * _flat(near), None if in_columns else _flat(of_query), _flat(weighted)
        )

    def _changes(self, band, weights, values, given, number, block):
        """A block's weights as they were used, and the gradient of its scores, but for what is near."""
        at = self._at(number, block)
        changes = self._pairs(band, given.queries[at], values)
        if given.of_query is not None:
            changes += given.of_query[at]
        if not self.drop:
            return weights, changes * weights
        factors = self._factors(weights, number, block)
        return weights * factors, (changes * factors - given.weighted[at]) * weights

    def _of_table(self, table, rows, base):
        """The gradient of a table, of whose rows and base come these, by block."""
        rows, base = (tf.reduce_sum(x, 1) for x in (rows, base + tf.zeros_like(rows[..., :1, :])))
        by_head = gradient_of_table(rows, base, self.layout.causal)
        return by_head if table.shape[1] != 1 else tf.reduce_sum(by_head, 1, keepdims=True)

    def _arrays(self, count, query, **settings):
        size = tf.shape(query)[0] * self.layout.num_blocks
        return [tf.TensorArray(self._exact, size=size, **settings) for _ in range(count)]

    def _stacked(self, arrays, query):
        """What was written block after block: `[groups, blocks, G, ..]`."""
        stacks = (tf.ensure_shape(array.stack(), [None] * 4) for array in arrays)
        return [tf.reshape(x, tf.concat([tf.shape(query)[:2], tf.shape(x)[1:]], 0)) for x in stacks]


def _flat(x):
    """`[groups, blocks, ..]` -> block after block."""
    return tf.reshape(x, tf.concat([[-1], tf.shape(x)[2:]], 0))


def _write(arrays, index, values):
    return [array.write(index, value) for array, value in zip(arrays, values, strict=True)]


def _loop(count, body, *state):
    """`state = body(i, *state)` for i = 0 … count - 1."""
    result = tf.while_loop(
        lambda i, *_: i < count,
        lambda i, *state: (i + 1, *body(i, *state)),
        (0, *state),
        parallel_iterations=1,
    )
    return result[1:]
