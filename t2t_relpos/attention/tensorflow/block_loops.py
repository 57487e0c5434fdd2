"""The loops over groups of heads and blocks of queries, forward and backward."""

from typing import NamedTuple

import tensorflow as tf

from t2t_relpos.attention.tensorflow.band import Band, difference_rows, table_gradient


class _OutputGradients(NamedTuple):
    """Gradients of the outputs, computed for all blocks together and indexed by block.

    Args:
        queries: d_outputs with the columns of the left tail.
        diagonals: the band of d_weights times weights.
        bias: added to d_weights for all keys, `[.., C, 1]`, or None if it is one of the columns.
        row_sums: sums of d_outputs times outputs, `[.., C, 1]`.
    """

    queries: tf.Tensor
    diagonals: tf.Tensor
    bias: tf.Tensor | None
    row_sums: tf.Tensor


class BlockAttention:
    """Attention of G heads of one batch entry at a time.

    Shapes: queries `[groups, G, T, H]`, keys `[groups, G, S, H]`, tables `[groups, 1 or G, R, H]`.
    Split into blocks: queries `[groups, blocks, G, C, H]`, by id `[.., G, L, C]`, by diagonal
    `[.., G, D, C]`.

    Args:
        layout: a `BlockLayout`.
        query_band: the `QueryBand` of all queries, split into blocks.
        masks: a `BlockMasks`.
        dropout: a `BlockDropout` or None.
        dtype: dtype in which matrices are multiplied. Scores, weights and sums have the dtype of
            `query_band`, float32 at least.
        save_weights: whether weights are saved for the gradient.
    """

    def __init__(self, layout, query_band, masks, dropout, dtype, *, save_weights):
        self._layout, self._query_band, self._masks = layout, query_band, masks
        self._dropout, self._dtype, self._save_weights = dropout, dtype, save_weights
        self._accumulation = query_band.dtype
        # The weights of a query do not always sum to 1.
        self._needs_weight_sums = bool(dropout) or masks.may_be_fully_masked

    def attend(self, *args):
        """Returns outputs `[groups, G, T, Hv]` of query, key, value, key table, value table."""
        layout = self._layout

        @tf.custom_gradient
        def run(query, key, value, *tables):
            tensors = (layout.split(query), layout.pad_keys(key), layout.pad_keys(value), *tables)
            outputs, *saved = self._forward(tensors)

            def gradient(d_outputs):
                exact = tf.cast(d_outputs, self._accumulation)
                row_sums = tf.reduce_sum(exact * outputs, -1, keepdims=True)
                split = (layout.split(x) for x in (d_outputs, row_sums))
                d_query, d_key, d_value, *d_tables = self._backward(tensors, saved, *split)
                keys = (layout.unpad_keys(x) for x in (d_key, d_value))
                gradients = layout.join(d_query), *keys, *d_tables
                return [tf.cast(x, like.dtype) for x, like in zip(gradients, args, strict=True)]

            return tf.cast(outputs, query.dtype), gradient

        return run(*args)

    def _matmul(self, x, y, **options):
        product = tf.matmul(tf.cast(x, self._dtype), tf.cast(y, self._dtype), **options)
        return tf.cast(product, self._accumulation)

    def _band(self, block):
        layout = self._layout
        return Band(self._query_band, layout.first(block), layout.block, layout.end(block))

    def _rows(self, tables):
        """Returns (difference rows, reference row) of every table, for all blocks."""
        return [difference_rows(table[:, None], self._layout.causal) for table in tables]

    def _augment(self, x, rows, bias=None):
        """Returns (queries with the tail's columns, biases by diagonal), indexed by block."""
        by_id = self._matmul(rows, x, transpose_b=True)
        columns = self._query_band.append_columns(x, by_id, bias)
        return _flatten(columns), _flatten(self._query_band.to_diagonals(by_id))

    def _scores(self, band, queries, keys):
        """Returns the scores of a block without its band, `[G, C, keys]`."""
        if not self._layout.causal:
            keys = band.append_columns(keys)
        return self._matmul(queries, keys, transpose_b=True)

    def _tail_sums(self, band, weights):
        return [] if self._layout.causal else [band.sum_tail(weights)]

    def _weights(self, band, key, augmented, group, block):
        queries, diagonals = (x[self._index(group, block)] for x in augmented)
        scores = self._scores(band, queries, key[:, : self._layout.end(block)])
        return self._masks.softmax(band.add(scores, diagonals)[0], group, block)

    def _factors(self, weights, group, block):
        return self._dropout.factors(tf.shape(weights)[0], group, block)

    def _index(self, group, block):
        return group * self._layout.num_blocks + block

    def _forward(self, tensors):
        """Returns outputs, weight sums, sums by id, band of the weights, saved weights."""
        query, key, value, *tables = tensors
        (key_rows, _), (value_rows, value_reference) = self._rows(tables)
        augmented = self._augment(query, key_rows)

        def one_block(group, block, state):
            band, end = self._band(block), self._layout.end(block)
            weights = dropped = self._weights(band, key[group], augmented, group, block)
            if self._dropout:
                dropped = weights * self._factors(weights, group, block)
            results = [self._matmul(dropped, value[group][:, :end]), band.read(dropped)]
            results += self._tail_sums(band, dropped)
            results += [tf.reduce_sum(dropped, -1, keepdims=True)] * self._needs_weight_sums
            results += [weights] * self._save_weights
            return _write(state, self._index(group, block), results)

        def one_group(group, *state):
            return _loop(self._layout.num_blocks, lambda b, *s: one_block(group, b, s), *state)

        arrays = self._arrays(3 - self._layout.causal + self._needs_weight_sums, query)
        saved = []
        if self._save_weights:
            saved = self._arrays(1, query, infer_shape=False, clear_after_read=False)
        results = _loop(tf.shape(query)[0], one_group, *arrays, *saved)
        outputs, *sums = self._stack(results[: len(arrays)], query)
        totals = sums.pop() if self._needs_weight_sums else tf.ones_like(outputs[..., :1])
        by_id = self._query_band.sum_by_id(*sums)
        outputs += self._matmul(by_id, value_rows, transpose_a=True)
        outputs += totals * tf.cast(value_reference, self._accumulation)
        return self._layout.join(outputs), totals, by_id, sums[0], results[len(arrays) :]

    def _backward(self, tensors, saved, d_outputs, row_sums):
        """Returns the gradients of queries by block, keys, values, and tables."""
        query, key, value, *tables = tensors
        totals, by_id, diagonals, saved_weights = saved
        (key_rows, _), value_rows = self._rows(tables)
        augmented = None if self._save_weights else self._augment(query, key_rows)
        given = self._prepare(d_outputs, row_sums, diagonals, *value_rows)
        queries, flat_d_outputs = _flatten(query), _flatten(d_outputs)

        def one_block(group, block, state):
            index, band = self._index(group, block), self._band(block)
            end = self._layout.end(block)
            *arrays, d_key, d_value = state
            if self._save_weights:
                weights = saved_weights[0].read(index)
            else:
                weights = self._weights(band, key[group], augmented, group, block)
            weights = tf.ensure_shape(weights, [None, None, None])
            dropped, d_scores = self._d_scores(
                band, weights, value[group][:, :end], given, group, block
            )
            # The band is added last, because `add` also returns the band that the sums need.
            d_scores, d_band = band.add(d_scores, given.diagonals[index])
            results = [self._matmul(d_scores, key[group][:, :end]), d_band]
            results += self._tail_sums(band, d_scores)
            terms = (
                self._matmul(d_scores, queries[index], transpose_a=True),
                self._matmul(dropped, flat_d_outputs[index], transpose_a=True),
            )
            sums = (
                tf.ensure_shape(x + self._layout.pad_end(y, block), x.shape)
                for x, y in zip((d_key, d_value), terms)
            )
            return *_write(arrays, index, results), *sums

        def one_group(group, *state):
            *arrays, d_keys, d_values = state
            zeros = [tf.zeros_like(x[group], self._accumulation) for x in (key, value)]
            results = _loop(
                self._layout.num_blocks, lambda b, *s: one_block(group, b, s), *arrays, *zeros
            )
            return *results[:-2], *_write((d_keys, d_values), group, results[-2:])

        of_keys = [tf.TensorArray(self._accumulation, size=tf.shape(key)[0]) for _ in range(2)]
        *results, d_key, d_value = _loop(
            tf.shape(query)[0], one_group, *self._arrays(3 - self._layout.causal, query), *of_keys
        )
        d_query, *sums = self._stack(results, query)
        d_by_id = self._query_band.sum_by_id(*sums)
        d_query += self._matmul(d_by_id, key_rows, transpose_a=True)
        d_reference = tf.reduce_sum(
            totals * tf.cast(d_outputs, self._accumulation), -2, keepdims=True
        )
        d_tables = (
            self._d_table(tables[0], self._matmul(d_by_id, query), 0.0),
            self._d_table(tables[1], self._matmul(by_id, d_outputs), d_reference),
        )
        return d_query, d_key.stack(), d_value.stack(), *d_tables

    def _prepare(self, d_outputs, row_sums, diagonals, rows, reference):
        exact = tf.cast(d_outputs, self._accumulation)
        reference = tf.cast(reference, self._accumulation)
        bias = tf.reduce_sum(exact * reference, -1, keepdims=True)
        if not self._dropout:
            bias -= row_sums
        # Causal blocks have no columns. A 16-bit column would be rounded the same way for all keys.
        in_column = not self._layout.causal and d_outputs.dtype == self._accumulation
        queries, added = self._augment(d_outputs, rows, bias if in_column else None)
        return _OutputGradients(
            queries,
            added * _flatten(diagonals),
            None if in_column else _flatten(bias),
            _flatten(row_sums),
        )

    def _d_scores(self, band, weights, values, given, group, block):
        """Returns (weights after dropout, gradient of the scores without its band) of a block."""
        index = self._index(group, block)
        d_weights = self._scores(band, given.queries[index], values)
        if given.bias is not None:
            d_weights += given.bias[index]
        if not self._dropout:
            return weights, d_weights * weights
        factors = self._factors(weights, group, block)
        return weights * factors, (d_weights * factors - given.row_sums[index]) * weights

    def _d_table(self, table, d_rows, d_reference):
        """Returns the gradient of a table from those of its rows and reference, by block."""
        d_reference += tf.zeros_like(d_rows[..., :1, :])
        d_rows, d_reference = (tf.reduce_sum(x, 1) for x in (d_rows, d_reference))
        by_head = table_gradient(d_rows, d_reference, self._layout.causal)
        return by_head if table.shape[1] != 1 else tf.reduce_sum(by_head, 1, keepdims=True)

    def _arrays(self, count, query, **options):
        size = tf.shape(query)[0] * self._layout.num_blocks
        return [tf.TensorArray(self._accumulation, size=size, **options) for _ in range(count)]

    def _stack(self, arrays, query):
        """Returns the stacked blocks of arrays, each `[groups, blocks, G, ..]`."""
        stacks = (tf.ensure_shape(array.stack(), [None] * 4) for array in arrays)
        groups = tf.shape(query)[:2]
        return [tf.reshape(x, tf.concat([groups, tf.shape(x)[1:]], 0)) for x in stacks]


def _flatten(x):
    """Merges two axes, `[groups, blocks, ..]` -> `[groups * blocks, ..]`."""
    return tf.reshape(x, tf.concat([[-1], tf.shape(x)[2:]], 0))


def _write(arrays, index, values):
    return [array.write(index, value) for array, value in zip(arrays, values, strict=True)]


def _loop(count, body, *state):
    """Runs `state = body(i, *state)` for i = 0 ... count - 1."""
    result = tf.while_loop(
        lambda i, *_: i < count,
        lambda i, *state: (i + 1, *body(i, *state)),
        (0, *state),
        parallel_iterations=1,
    )
    return result[1:]
