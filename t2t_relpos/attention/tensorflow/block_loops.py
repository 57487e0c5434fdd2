"""The loops over groups of heads and blocks of queries, forward and backward."""

from typing import Any, NamedTuple

import tensorflow as tf

from t2t_relpos.attention.tensorflow.band import table_gradient
from t2t_relpos.attention.tensorflow.block_steps import BlockSteps, flatten


class _Tensors(NamedTuple):
    """Inputs of the loops: queries split into blocks, padded keys and values, and tables."""

    query: tf.Tensor
    key: tf.Tensor
    value: tf.Tensor
    key_table: tf.Tensor
    value_table: tf.Tensor


class _Saved(NamedTuple):
    """Results of the forward pass that the gradient reads, for all blocks.

    Args:
        weight_sums: sums of each query's weights after dropout, `[.., C, 1]`.
        sums_by_id: sums of the weights after dropout by relative id, `[.., L, C]`.
        band: the band of the weights after dropout, `[.., D, C]`.
        weights: a TensorArray with the weights of each block before dropout, or None.
    """

    weight_sums: tf.Tensor
    sums_by_id: tf.Tensor
    band: tf.Tensor
    weights: Any


class BlockAttention(BlockSteps):
    """Attention of G heads of one batch entry at a time. The arguments are those of `BlockSteps`.

    C is the number of queries of a block, R the number of rows of a table, L that of its difference
    rows, and D the number of diagonals of the band.

    Shapes: queries `[groups, G, T, H]`, keys `[groups, G, S, H]`, tables `[groups, 1 or G, R, H]`.
    Split into blocks: queries `[groups, blocks, G, C, H]`, by id `[.., G, L, C]`, by diagonal
    `[.., G, D, C]`.
    """

    def attend(self, *args):
        """Returns outputs `[groups, G, T, Hv]` of query, key, value, key table, value table."""
        layout = self._layout

        @tf.custom_gradient
        def run(query, key, value, *tables):
            keys = (layout.pad_keys(x) for x in (key, value))
            tensors = _Tensors(layout.split(query), *keys, *tables)
            outputs, saved = self._forward(tensors)

            def gradient(d_outputs):
                wide_d_outputs = tf.cast(d_outputs, self._accumulation)
                row_sums = tf.reduce_sum(wide_d_outputs * outputs, -1, keepdims=True)
                split = (layout.split(x) for x in (d_outputs, row_sums))
                d_query, d_key, d_value, *d_tables = self._backward(tensors, saved, *split)
                d_keys = (layout.unpad_keys(x) for x in (d_key, d_value))
                gradients = layout.join(d_query), *d_keys, *d_tables
                return [tf.cast(x, like.dtype) for x, like in zip(gradients, args, strict=True)]

            return tf.cast(outputs, query.dtype), gradient

        return run(*args)

    def _forward(self, tensors):
        """Returns (outputs `[groups, G, T, Hv]`, `_Saved`)."""
        layout = self._layout
        augmented = self._augment(tensors.query, self._difference_rows(tensors.key_table)[0])

        def one_block(group, number, arrays):
            block = self._block(group, number)
            return _write(arrays, block.index, self._forward_block(tensors, augmented, block))

        def one_group(group, arrays):
            return _loop(layout.num_blocks, lambda number, x: one_block(group, number, x), arrays)

        names = ["outputs", "band"]
        names += [] if layout.causal else ["tail"]
        names += ["weight_sums"] if self._needs_weight_sums else []
        arrays = self._arrays(names, tensors.query)
        if self._save_weights:
            options = {"infer_shape": False, "clear_after_read": False}
            arrays.update(self._arrays(["weights"], tensors.query, **options))
        results = _loop(tf.shape(tensors.query)[0], one_group, arrays)
        weights = results.pop("weights", None)
        results = self._stack(results, tensors.query)
        outputs, sums_by_id = results["outputs"], self._sum_by_id(results)
        weight_sums = results.get("weight_sums")
        if weight_sums is None:
            weight_sums = tf.ones_like(outputs[..., :1])
        rows, reference = self._difference_rows(tensors.value_table)
        outputs += self._matmul(sums_by_id, rows, transpose_a=True)
        outputs += weight_sums * tf.cast(reference, self._accumulation)
        return layout.join(outputs), _Saved(weight_sums, sums_by_id, results["band"], weights)

    def _backward(self, tensors, saved, d_outputs, row_sums):
        """Returns the gradients of queries by block, keys, values, and tables."""
        key_rows, _ = self._difference_rows(tensors.key_table)
        augmented = None if self._save_weights else self._augment(tensors.query, key_rows)
        output_gradients = self._output_gradients(
            d_outputs, row_sums, saved.band, *self._difference_rows(tensors.value_table)
        )
        flat = {"query": flatten(tensors.query), "d_outputs": flatten(d_outputs)}

        def one_block(group, number, state):
            arrays, d_keys = state
            block = self._block(group, number)
            if self._save_weights:
                weights = saved.weights.read(block.index)
            else:
                weights = self._weights(block, tensors.key, augmented)
            results, terms = self._backward_block(tensors, weights, output_gradients, flat, block)
            return _write(arrays, block.index, results), self._add_keys(d_keys, terms, number)

        results, d_keys = self._backward_loops(tensors, one_block)
        d_by_id = self._sum_by_id(results)
        d_query = results["d_query"] + self._matmul(d_by_id, key_rows, transpose_a=True)
        d_reference = tf.reduce_sum(
            saved.weight_sums * tf.cast(d_outputs, self._accumulation), -2, keepdims=True
        )
        d_tables = (
            self._d_table(tensors.key_table, self._matmul(d_by_id, tensors.query), 0.0),
            self._d_table(
                tensors.value_table, self._matmul(saved.sums_by_id, d_outputs), d_reference
            ),
        )
        return d_query, d_keys["key"], d_keys["value"], *d_tables

    def _backward_loops(self, tensors, one_block):
        """Calls `one_block` for all blocks. Returns (stacked results, gradients of keys)."""
        layout, keys = self._layout, {"key": tensors.key, "value": tensors.value}

        def one_group(group, state):
            arrays, key_arrays = state
            zeros = {name: tf.zeros_like(x[group], self._accumulation) for name, x in keys.items()}
            arrays, d_keys = _loop(
                layout.num_blocks, lambda number, x: one_block(group, number, x), (arrays, zeros)
            )
            return arrays, _write(key_arrays, group, d_keys)

        names = ["d_query", "band"] + ([] if layout.causal else ["tail"])
        num_groups = tf.shape(tensors.key)[0]
        key_arrays = {name: tf.TensorArray(self._accumulation, size=num_groups) for name in keys}
        state = self._arrays(names, tensors.query), key_arrays
        arrays, key_arrays = _loop(tf.shape(tensors.query)[0], one_group, state)
        d_keys = {name: array.stack() for name, array in key_arrays.items()}
        return self._stack(arrays, tensors.query), d_keys

    def _add_keys(self, sums, terms, number):
        """Adds the gradients of a block's keys to those of all keys."""
        return {
            name: tf.ensure_shape(x + self._layout.pad_end(terms[name], number), x.shape)
            for name, x in sums.items()
        }

    def _d_table(self, table, d_rows, d_reference):
        """Returns the gradient of a table from those of its rows and reference, by block."""
        d_reference += tf.zeros_like(d_rows[..., :1, :])
        d_rows, d_reference = (tf.reduce_sum(x, 1) for x in (d_rows, d_reference))
        by_head = table_gradient(d_rows, d_reference, causal=self._layout.causal)
        return by_head if table.shape[1] != 1 else tf.reduce_sum(by_head, 1, keepdims=True)

    def _arrays(self, names, query, **options):
        """Returns a dict of TensorArrays with an entry for every block."""
        size = tf.shape(query)[0] * self._layout.num_blocks
        return {name: tf.TensorArray(self._accumulation, size=size, **options) for name in names}

    def _stack(self, arrays, query):
        """Returns a dict of the stacked blocks of arrays, each `[groups, blocks, G, ..]`."""
        groups = tf.shape(query)[:2]
        stacked = {}
        for name, array in arrays.items():
            blocks = tf.ensure_shape(array.stack(), [None] * 4)
            stacked[name] = tf.reshape(blocks, tf.concat([groups, tf.shape(blocks)[1:]], 0))
        return stacked


def _write(arrays, index, values):
    """Writes a dict of values into the TensorArrays with the same names."""
    return {name: array.write(index, values[name]) for name, array in arrays.items()}


def _loop(count, body, state):
    """Runs `state = body(i, state)` for i = 0 ... count - 1."""
    _, state = tf.while_loop(
        lambda i, _: i < count,
        lambda i, state: (i + 1, body(i, state)),
        (0, state),
        parallel_iterations=1,
    )
    return state
