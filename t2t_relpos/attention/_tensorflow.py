"""Relative attention on TensorFlow: block by block, memory linear in length, with a gradient of its own.

A head's queries are taken in blocks. Outside of a block's window all keys on a
side have the same label, so that its row can be added to keys and values
beforehand. Rows are taken relative to row 0 (a constant per query changes no
softmax): then the left side is plain attention, and only the right needs keys and
values of its own. The gradient computes a block's weights again instead of
keeping them.
"""

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from t2t_relpos.attention._tensorflow_masks import HIDDEN, BlockDropout, BlockMasks, both_sides
from t2t_relpos.attention.window import Window

LARGEST_BLOCK = 256


def is_compiled():
    """Whether XLA compiles what is being traced: it takes no sizes that change in a loop."""
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


@tf.autograph.experimental.do_not_convert
def attend_in_blocks(query, key, value, key_table, value_table, *, dropout, longest_whole, whole, **settings):
    """The outputs of `attend`, in memory linear in T and S.

    Args: as those of `attend`: `query_offset`, an int or a scalar tensor, `causal`, `key_mask`, `mask`, and `dropout`, an
        `AttentionDropout` or None.
        longest_whole: up to so many positions (of pairs: its square) `whole` is called instead.
        whole: gives the outputs without blocks, from a function that drops weights, or None.

    Returns:
        outputs `[B, N, T, Hv]`.
    """
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    # Out here: a seed that is drawn in one branch of a graph leaves its generator in that branch.
    seed = dropout and tf.bitcast(tf.cast(dropout.draw_seed(), tf.uint32), tf.int32)

    def drop(weights):
        return tf.nn.experimental.stateless_dropout(weights, dropout.rate, seed)

    def blocks():
        tables = (x if x is None else tf.convert_to_tensor(x) for x in (key_table, value_table))
        run = _in_blocks.python_function if tf.executing_eagerly() else _in_blocks
        return run(query, key, value, *tables, **_as_tensors(query, **settings), rate=dropout and dropout.rate, seed=seed)

    def at_once():
        return whole(dropout and drop)

    def nothing():
        return tf.zeros(tf.concat([tf.shape(query)[:-1], tf.shape(value)[-1:]], 0), query.dtype)

    batch, length_q, length_k = query.shape[0], query.shape[2], key.shape[2]
    known = None not in (length_q, length_k)
    if known and length_q * length_k <= longest_whole**2:
        return at_once()
    if known and batch:
        return blocks()
    # A replica may hold no rows at all, of which loops over heads make nothing that has a shape.
    pairs = tf.shape(query)[2] * tf.shape(key)[2]
    return tf.cond((pairs > longest_whole**2) & (tf.shape(query)[0] > 0), blocks, nothing if known else at_once)


def _as_tensors(query, query_offset, causal, key_mask, mask):
    """Arguments that don't make `_in_blocks` trace anew."""
    exact = tf.float32 if query.dtype.size == 2 else query.dtype
    if mask is not None and len(mask.shape) == 4 and mask.shape[1] == mask.shape[2] == 1:
        # One for all queries hides keys.
        keys = tf.cast(mask[:, 0, 0], tf.bool)
        key_mask, mask = keys if key_mask is None else tf.cast(key_mask, tf.bool) & keys, None
    return {
        "query_offset": tf.cast(query_offset, tf.int32),
        "causal": causal,
        "key_mask": None if key_mask is None else tf.cast(key_mask, tf.bool),
        "mask": None if mask is None else tf.cast(mask, tf.bool),
        "exact": exact,
        "largest_block": LARGEST_BLOCK,
    }


# A function of its own, so that in a graph all layers share what is traced.
@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def _in_blocks(
    query, key, value, key_table, value_table, query_offset, causal, key_mask, mask, exact, largest_block, rate, seed
):
    num_labels = (value_table if key_table is None else key_table).shape[-2]
    lengths = tf.shape(query)[2], tf.shape(key)[2]
    window = Window(*lengths, query_offset, num_labels, causal, largest_block, exact)
    masks = BlockMasks(window, query.shape[1], key_mask, mask, exact)
    drop = rate and BlockDropout(window, rate, seed, exact)
    tables = [
        tf.zeros([1, num_labels, x.shape[-1]], exact) if table is None else _per_head(table, exact)
        for table, x in ((key_table, query), (value_table, value))
    ]
    rows = [tf.reshape(x, [-1, tf.shape(x)[2], x.shape[-1]]) for x in (query, key, value)]
    outputs = _Blocks(window, masks, drop, exact, query.dtype).attend(*rows, *tables)
    shape = tf.concat([tf.shape(query)[:-1], tf.shape(value)[-1:]], 0)
    return tf.ensure_shape(tf.reshape(outputs, shape), (*query.shape[:-1], value.shape[-1]))


def _per_head(table, dtype):
    table = tf.cast(table, dtype)
    return table[None] if len(table.shape) == 2 else table


class _Blocks:
    """Attention of all heads, forward and backward.

    Heads are `[B·N, ...]`, queries and keys of a head `[T, H]` and `[S, H]`; tables `[1 or N, 2K + 1, H]`.
    """

    def __init__(self, window, masks, drop, exact, given):
        self.window, self.masks, self.drop = window, masks, drop
        self.exact, self.given = exact, given

    def attend(self, *args):
        @tf.custom_gradient
        def run(query, key, value, key_table, value_table):
            tensors = self._padded(query), key, value, *map(self._relative, (key_table, value_table))
            constants = value_table[:, :1]
            outputs, *saved = self._forward(tensors, constants)

            def gradient(upstream):
                gradients = self._backward(tensors, constants, outputs, saved, self._padded(upstream))
                return self._as_given(gradients, (query, key, value, key_table, value_table))

            return tf.cast(outputs[:, : self.window.length_q], query.dtype), gradient

        return run(*args)

    def _padded(self, rows):
        """Whole blocks of queries."""
        missing = self.window.num_blocks * self.window.block - self.window.length_q
        return tf.pad(rows, [[0, 0], [0, missing], [0, 0]])

    def _relative(self, table):
        """Rows that occur, relative to row 0."""
        return table[:, : self.window.num_labels] - table[:, :1]

    def _product(self, x, y, **transposed):
        """A product of matrices in the type of the query; its result in float32 at least."""
        given = self.given
        return tf.cast(tf.matmul(tf.cast(x, given), tf.cast(y, given), **transposed), self.exact)

    def _head(self, tensors, head):
        query, key, value, key_table, value_table = tensors
        tables = [table[head % tf.shape(table)[0]] for table in (key_table, value_table)]
        return query[head], key[head], value[head], *tables

    def _scores(self, query, by_label, keys, head, block):
        """Scores of a block inside, and outside of its window. keys: those inside and outside."""
        inside = self._product(query, keys[0], transpose_b=True) + self.window.spread(by_label, block)
        return self.masks.hide(inside, self._product(query, keys[1], transpose_b=True), head, block)

    def _forward(self, tensors, constants):
        """Outputs `[B·N, T, Hv]`, and what the gradient needs: log-sums of exponentials, sums of weights, weights by label."""
        window, heads = self.window, tf.shape(tensors[0])[0]

        def one_head(head, *all_heads):
            query, key, value, key_table, value_table = self._head(tensors, head)
            by_label = self._product(query, key_table, transpose_b=True)
            keys, values = both_sides(window, key, key_table[-1:]), both_sides(window, value, value_table[-1:])

            def one_block(block, *blocks):
                rows, (first, end) = window.rows(block), window.keys(block)
                around = key[first:end], window.outside(keys, block)
                inside, outside = self._scores(query[rows], by_label[rows], around, head, block)
                largest = tf.maximum(tf.maximum(_largest(inside), _largest(outside)), tf.cast(HIDDEN / 10, self.exact))
                inside, outside = tf.exp(inside - largest), tf.exp(outside - largest)
                total = _sum(inside) + _sum(outside)
                log_total = tf.where(total > 0, largest + tf.math.log(total), -HIDDEN)
                kept = total
                if self.drop:
                    factors = self.drop.factors(head, block)
                    inside, outside = inside * factors[0], outside * factors[1]
                    kept = _sum(inside) + _sum(outside)
                scale = tf.math.divide_no_nan(tf.ones([], self.exact), total)
                outputs = self._product(inside, value[first:end]) + self._product(outside, window.outside(values, block))
                results = outputs * scale, log_total, kept * scale, window.collapse(inside, block) * scale
                return [blocks.write(block, x) for blocks, x in zip(blocks, results)]

            results = _loop(window.num_blocks, one_block, *self._arrays(4, window.num_blocks))
            outputs, log_total, kept, labels = (blocks.concat() for blocks in results)
            constant = constants[head % tf.shape(constants)[0]]
            outputs += self._product(labels, value_table) + kept * constant
            return [heads.write(head, x) for heads, x in zip(all_heads, (outputs, log_total, kept, labels))]

        return [x.stack() for x in _loop(heads, one_head, *self._arrays(4, heads))]

    def _backward(self, tensors, constants, outputs, saved, upstream):
        """Gradients of queries, keys, values, and by head of relative rows of keys, of values, and of the constant row."""
        window, heads = self.window, tf.shape(tensors[0])[0]

        def one_head(head, *all_heads):
            query, key, value, key_table, value_table = self._head(tensors, head)
            log_total, kept, labels = (x[head] for x in saved)
            given = upstream[head]
            constant = constants[head % tf.shape(constants)[0]]
            weighted = _sum(tf.cast(given, self.exact) * outputs[head])
            of_constant = _sum(tf.cast(given, self.exact) * constant)
            by_label = self._product(query, key_table, transpose_b=True)
            given_by_label = self._product(given, value_table, transpose_b=True)
            keys, values = both_sides(window, key, key_table[-1:]), both_sides(window, value, value_table[-1:])

            def one_block(block, queries, by_labels, d_key, d_value, right_key, right_value):
                rows, (first, end) = window.rows(block), window.keys(block)
                around = key[first:end], window.outside(keys, block)
                scores = self._scores(query[rows], by_label[rows], around, head, block)
                weights = [tf.exp(x - log_total[rows]) for x in scores]
                changes = [
                    self._product(given[rows], x, transpose_b=True)
                    for x in (value[first:end], window.outside(values, block))
                ]
                changes[0] += window.spread(given_by_label[rows], block)
                used = weights
                if self.drop:
                    factors = self.drop.factors(head, block)
                    used = [x * f for x, f in zip(weights, factors)]
                    changes = [(x + of_constant[rows]) * f - weighted[rows] for x, f in zip(changes, factors)]
                else:
                    # What is the same for all keys of a query changes no weight.
                    changes = [x - (weighted[rows] - of_constant[rows] * kept[rows]) for x in changes]
                changes = [x * w for x, w in zip(changes, weights)]
                d_values = [self._product(x, given[rows], transpose_a=True) for x in used]
                d_keys = [self._product(x, query[rows], transpose_a=True) for x in changes]
                d_query = self._product(changes[0], around[0]) + self._product(changes[1], around[1])
                if not window.causal:
                    right = window.length_k - end
                    right_key += tf.reduce_sum(d_keys[1][:right], 0, keepdims=True)
                    right_value += tf.reduce_sum(d_values[1][:right], 0, keepdims=True)
                return (
                    queries.write(block, d_query),
                    by_labels.write(block, window.collapse(changes[0], block)),
                    d_key + tf.ensure_shape(window.in_order(d_keys[1], d_keys[0], block), key.shape),
                    d_value + tf.ensure_shape(window.in_order(d_values[1], d_values[0], block), value.shape),
                    right_key,
                    right_value,
                )

            zeros = [tf.zeros_like(x, self.exact) for x in (key, value, key_table[:1], value_table[:1])]
            queries, by_labels, *sums = _loop(window.num_blocks, one_block, *self._arrays(2, window.num_blocks), *zeros)
            d_key, d_value, right_key, right_value = sums
            by_labels = by_labels.concat()
            d_key_table = _with_last(self._product(by_labels, query, transpose_a=True), right_key)
            d_value_table = _with_last(self._product(labels, given, transpose_a=True), right_value)
            d_query = queries.concat() + self._product(by_labels, key_table)
            d_constant = self._product(kept, given, transpose_a=True)
            gradients = d_query, d_key, d_value, d_key_table, d_value_table, d_constant
            return [heads.write(head, x) for heads, x in zip(all_heads, gradients)]

        return [x.stack() for x in _loop(heads, one_head, *self._arrays(6, heads))]

    def _as_given(self, gradients, inputs):
        """Gradients of the tensors that came in."""
        *rows, key_table, value_table, constant = gradients
        rows[0] = rows[0][:, : self.window.length_q]
        tables = self._of_table(key_table, 0.0, inputs[3]), self._of_table(value_table, constant, inputs[4])
        return [tf.cast(x, like.dtype) for x, like in zip((*rows, *tables), inputs)]

    def _of_table(self, relative, constant, table):
        """Gradients of relative rows by head -> those of the table `[1 or N, 2K + 1, H]`."""
        shape = tf.concat([[-1], [tf.shape(table)[0]], tf.shape(relative)[1:]], 0)
        first = constant - tf.reduce_sum(relative[:, 1:], 1, keepdims=True)
        rows = tf.reduce_sum(tf.reshape(tf.concat([first, relative[:, 1:]], 1), shape), 0)
        return tf.pad(rows, [[0, 0], [0, table.shape[1] - self.window.num_labels], [0, 0]])

    def _arrays(self, count, size):
        return [tf.TensorArray(self.exact, size=size) for _ in range(count)]


def _sum(x):
    return tf.reduce_sum(x, -1, keepdims=True)


def _largest(x):
    return tf.reduce_max(x, -1, keepdims=True)


def _with_last(rows, last):
    return tf.concat([rows[:-1], rows[-1:] + last], 0)


def _loop(count, body, *state):
    """`state = body(i, *state)` for i = 0 … count - 1."""
    result = tf.while_loop(
        lambda i, *_: i < count, lambda i, *state: (i + 1, *body(i, *state)), (0, *state), parallel_iterations=1
    )
    return result[1:]
