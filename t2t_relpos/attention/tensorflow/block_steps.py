"""Forward and backward pass of one block of queries, for `block_loops`.

A table is split into a reference row and the differences of the other rows from it. The reference
row of the key table adds the same number to all scores of a query. The softmax does not depend on
it, so it is left out, and its gradient is 0.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from t2t_relpos.attention.tensorflow.band import Band, diagonal_rows


class _Block(NamedTuple):
    """A block of queries of one group.

    Args:
        group: index of the group.
        number: index of the block in the group.
        index: index of the block among the blocks of all groups.
        end: the block reads the padded keys before this position.
        band: the `Band` of its scores.
    """

    group: Any
    number: Any
    index: Any
    end: Any
    band: Band


class _OutputGradients(NamedTuple):
    """Gradients of the outputs, computed for all blocks together and indexed by block.

    Args:
        columns: d_outputs, and the columns of the left tail.
        diagonals: terms of the value table in the band of d_scores.
        bias: d_outputs times the reference row of the value table, minus `row_sums` without
            dropout, `[.., C, 1]`; None if it is one of the columns.
        row_sums: sums of d_outputs times outputs, `[.., C, 1]`.
    """

    columns: tf.Tensor
    diagonals: tf.Tensor
    bias: tf.Tensor | None
    row_sums: tf.Tensor


class BlockSteps:
    """Computations on one block of queries, and on the queries of all blocks.

    Shapes are those of `block_loops.BlockAttention`.

    Args:
        layout: a `BlockLayout`.
        query_band: the `QueryBand` of all queries, split into blocks.
        masks: a `BlockMasks`.
        dropout: a `SeededDropout` or None.
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

    def _matmul(self, x, y, **options):
        product = tf.matmul(tf.cast(x, self._dtype), tf.cast(y, self._dtype), **options)
        return tf.cast(product, self._accumulation)

    def _block(self, group, number):
        layout = self._layout
        index, end = group * layout.num_blocks + number, layout.end(number)
        band = Band(self._query_band, layout.first(number), layout.block, end)
        return _Block(group, number, index, end, band)

    def _difference_rows(self, table):
        """Returns (difference rows, reference row) of a table, for all blocks."""
        return diagonal_rows(table[:, None], causal=self._layout.causal)

    def _augment(self, x, rows, bias=None):
        """Returns (queries with the tail's columns, biases by diagonal), indexed by block."""
        by_id = self._matmul(rows, x, transpose_b=True)
        columns = self._query_band.append_query_columns(x, by_id, bias)
        return flatten(columns), flatten(self._query_band.to_diagonals(by_id))

    def _scores(self, band, queries, keys):
        """Returns the products of queries and keys before the band's terms, `[G, C, keys]`."""
        if not self._layout.causal:
            keys = band.append_key_columns(keys)
        return self._matmul(queries, keys, transpose_b=True)

    def _band_sums(self, block, weights, diagonals):
        """Returns a dict of the band and, if bidirectional, the sums of the left tail."""
        sums = {"band": diagonals}
        if not self._layout.causal:
            sums["tail"] = block.band.sum_tail(weights)
        return sums

    def _sum_by_id(self, results):
        return self._query_band.sum_by_id(results["band"], results.get("tail"))

    def _weights(self, block, key, augmented):
        """Returns the weights of a block, `[G, C, keys]`."""
        queries, diagonals = (x[block.index] for x in augmented)
        scores = self._scores(block.band, queries, key[block.group][:, : block.end])
        scores, _ = block.band.add(scores, diagonals)
        return self._masks.softmax(scores, block.group, block.number)

    def _factors(self, weights, block):
        return self._dropout.factors(tf.shape(weights), weights.dtype, block.index)

    def _forward_block(self, tensors, augmented, block):
        """Returns a dict of the results of a block."""
        weights = dropped = self._weights(block, tensors.key, augmented)
        if self._dropout:
            dropped = weights * self._factors(weights, block)
        values = tensors.value[block.group][:, : block.end]
        results = {"outputs": self._matmul(dropped, values)}
        results.update(self._band_sums(block, dropped, block.band.read(dropped)))
        if self._needs_weight_sums:
            results["weight_sums"] = tf.reduce_sum(dropped, -1, keepdims=True)
        if self._save_weights:
            results["weights"] = weights
        return results

    def _backward_block(self, tensors, weights, output_gradients, flat, block):
        """Returns (a dict of the results of a block, a dict of the gradients of its keys)."""
        weights = tf.ensure_shape(weights, [None, None, None])
        dropped, d_scores = self._d_scores(tensors.value, weights, output_gradients, block)
        # The band is added last, because `add` also returns the band that the sums need.
        d_scores, d_band = block.band.add(d_scores, output_gradients.diagonals[block.index])
        keys = tensors.key[block.group][:, : block.end]
        results = {"d_query": self._matmul(d_scores, keys)}
        results.update(self._band_sums(block, d_scores, d_band))
        terms = {
            "key": self._matmul(d_scores, flat["query"][block.index], transpose_a=True),
            "value": self._matmul(dropped, flat["d_outputs"][block.index], transpose_a=True),
        }
        return results, terms

    def _output_gradients(self, d_outputs, row_sums, diagonals, rows, reference):
        """Returns the `_OutputGradients` of all blocks."""
        wide_d_outputs = tf.cast(d_outputs, self._accumulation)
        reference = tf.cast(reference, self._accumulation)
        bias = tf.reduce_sum(wide_d_outputs * reference, -1, keepdims=True)
        if not self._dropout:
            bias -= row_sums
        # Causal blocks have no columns. In 16 bits, the bias is added after the product: the
        # rounding error of a column, the same for all keys of a query, would not average out.
        in_column = not self._layout.causal and d_outputs.dtype == self._accumulation
        columns, added = self._augment(d_outputs, rows, bias if in_column else None)
        return _OutputGradients(
            columns=columns,
            diagonals=added * flatten(diagonals),
            bias=None if in_column else flatten(bias),
            row_sums=flatten(row_sums),
        )

    def _d_scores(self, value, weights, output_gradients, block):
        """Returns (weights after dropout, d_scores before the band's terms) of a block."""
        values = value[block.group][:, : block.end]
        d_weights = self._scores(block.band, output_gradients.columns[block.index], values)
        if output_gradients.bias is not None:
            d_weights += output_gradients.bias[block.index]
        if not self._dropout:  # `row_sums` are part of the bias.
            return weights, d_weights * weights
        factors = self._factors(weights, block)
        d_scores = (d_weights * factors - output_gradients.row_sums[block.index]) * weights
        return weights * factors, d_scores


def flatten(x):
    """Merges two axes, `[groups, blocks, ..]` -> `[groups * blocks, ..]`."""
    return tf.reshape(x, tf.concat([[-1], tf.shape(x)[2:]], 0))
