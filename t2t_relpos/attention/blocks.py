"""The queries of a block, the keys that it reads, and its forward and backward pass, in keras.ops.

`blockwise` calls the blocks one after the other.

Shapes: C queries of a block; R - 1 ids without that of the reference row.
"""

import functools
from typing import Any, NamedTuple

import keras

from t2t_relpos import backend
from t2t_relpos.attention.band import Runs, masked_distances
from t2t_relpos.attention.heads import multiply, sum_over_queries, transpose
from t2t_relpos.attention.skew import expand_ids, pad_columns, sum_by_id
from t2t_relpos.attention.tables import matmul_table
from t2t_relpos.backend import (
    MASKED_SCORE,
    accumulation_dtype,
    clip_size,
    fill_masked,
    ops,
    start_indices,
    weights_and_log_sums,
    write_slice,
)

# Names of tensors by key.
BY_KEY = "key", "value"


class Segment(NamedTuple):
    """Consecutive blocks of queries. They read the same keys, without a sliding window.

    Args:
        start: first query.
        length: number of queries.
        block: number of queries of a block, C.
        count: number of blocks.
        first_key: first key that the blocks read.
        num_keys: number of keys that the blocks read. With a sliding window, each of several blocks
            reads a range of them.
        number: number of the first block in the sequence.
    """

    start: Any
    length: Any
    block: Any
    count: Any
    first_key: Any
    num_keys: Any
    number: Any

    @property
    def is_single(self):
        """Whether the segment is known to have one block."""
        return isinstance(self.count, int) and self.count == 1

    def queries(self, x):
        """Returns the segment's queries, `[.., T, X]` -> `[.., blocks * C, X]`, zero-padded."""
        x = x[:, :, self.start : self.start + self.length]
        padding = self.count * self.block - self.length
        if isinstance(padding, int) and padding == 0:
            return x
        batch, heads, _, depth = ops.shape(x)
        zeros = ops.zeros((batch, heads, padding, depth), dtype=x.dtype)
        return ops.concatenate([x, zeros], axis=2)

    def keys(self, x, axis=2):
        """Returns the keys that the blocks read, of `[.., S, X]`, or of `[.., 1 or S]`."""
        keys = slice(self.first_key, self.first_key + self.num_keys)
        if axis == 2:
            return x[:, :, keys]
        return x if x.shape[3] == 1 else x[..., keys]

    def keys_of_block(self, call, position):
        """Returns (first key, number of keys) that a block reads, among the keys of the segment.

        `position` is that of the block's first query among these keys.
        """
        if call.sliding_window is None or self.is_single:
            return 0, self.num_keys
        return masked_distances(call).block_keys(position, self.block, self.num_keys)

    def block_queries(self, x, start):
        """Returns the C queries from `start`, of `[.., blocks * C, X]`."""
        if self.is_single:
            return x
        if isinstance(start, int):
            return x[:, :, start : start + self.block]
        batch, heads, _, depth = ops.shape(x)
        start = start_indices(0, 0, start, 0)
        return ops.slice(x, start, (batch, heads, self.block, depth))

    def run(self, compute, buffers, totals):
        """Calls `compute` for all blocks of the segment, one after the other.

        Args:
            compute: function of the number of a block in this segment. It returns (results,
                terms, first key), with two dicts. Results `[B, N, C, X]` are written into the
                buffers with the same names. Terms are added to the totals with the same names:
                those of `BY_KEY` `[B, G, keys of the block, X]` from the first key on.
            buffers: dict of tensors `[B, N, blocks * C, X]`. Unused if `is_single`.
            totals: dict of tensors, those of `BY_KEY` `[B, G, num_keys, X]`. Unused if `is_single`.

        Returns:
            (buffers cut to `length` rows, totals).
        """
        if self.is_single:
            return compute(0)[:2]

        def body(number, state):
            buffers, sums = state
            # With JAX_ENABLE_X64, it is int64. PyTorch's loop has ints.
            number = number if isinstance(number, int) else ops.cast(number, "int32")
            rows, terms, first_key = compute(number)
            first = number * self.block
            buffers = {n: write_slice(x, rows[n], first, axis=2) for n, x in buffers.items()}
            return buffers, {
                n: _add_at(x, terms[n], first_key) if n in BY_KEY else x + terms[n]
                for n, x in sums.items()
            }

        buffers, totals = ops.fori_loop(0, self.count, body, (buffers, totals))
        return {name: x[:, :, : self.length] for name, x in buffers.items()}, totals


def make_segments(call, sizes, *, unrolled):
    """Returns the segments of all queries.

    If the query offset is known, a segment reads neither keys after its last query, if causal, nor
    keys outside of its sliding window.

    Args:
        call: an `AttentionCall`. Lengths are ints if `unrolled`.
        sizes: the `Sizes` of the blocks.
        unrolled: whether there is no loop. Every block is then a segment, as on PyTorch with known
            lengths, and there are at most `sizes.max_blocks`.
    """
    length_q, length_k = call.length_q, call.length_k
    # Shorter with a sliding window: long blocks compute more keys that are masked.
    largest = sizes.block_of(call, in_loop=not unrolled)
    num_blocks = (length_q + largest - 1) // largest
    if not call.knows_lengths:
        # Most comparisons with a symbolic length of JAX are inconclusive.
        is_symbolic = not (isinstance(length_q, int) or ops.is_tensor(length_q))
        block = largest if is_symbolic else clip_size(largest, 1, length_q)
        return (Segment(0, length_q, block, num_blocks, 0, length_k, 0),)
    num_blocks = max(1, min(num_blocks, sizes.max_blocks) if unrolled else num_blocks)
    block = -(-length_q // num_blocks)
    num_blocks = max(1, -(-length_q // max(block, 1)))
    num_segments = 1
    if call.causal and call.sliding_window is None and isinstance(call.query_offset, int):
        num_segments = min(num_blocks, sizes.causal_segments)
    # Loops of PyTorch run in Python: each block can have other keys.
    num_segments = num_blocks if unrolled or call.backend == "torch" else num_segments
    segments = []
    for index in range(num_segments):
        number = index * num_blocks // num_segments
        count = (index + 1) * num_blocks // num_segments - number
        start = number * block
        length = min(count * block, length_q - start)
        size = length if count == 1 else block
        keys = _key_range(call, start, length)
        segments.append(Segment(start, length, size, count, *keys, number))
    return tuple(segments)


def _key_range(call, start, length):
    """Returns (first key, number of keys) that `length` queries from `start` read, ints.

    There is at least one key, if the call has any.
    """
    length_k, least = call.length_k, min(1, call.length_k)
    if not isinstance(call.query_offset, int):
        return 0, length_k
    position = call.query_offset + start
    first, end = masked_distances(call).existing_keys(position, length, length_k)
    end = max(end, least)
    first = min(first, end - least)
    return first, end - first


def _add_at(x, terms, first_key):
    """Returns `[B, N, S, X]` plus terms `[B, N, keys, X]` from the first key on."""
    if isinstance(first_key, int) and first_key == 0 and terms.shape[2] == x.shape[2]:
        return x + terms
    position = start_indices(0, 0, first_key, 0)
    terms = ops.slice(x, position, ops.shape(terms)) + terms
    return write_slice(x, terms, first_key, axis=2)


class Block:
    """One block of queries: its scores, and its forward and backward pass.

    Args:
        call: an `AttentionCall` of `blockwise`. Its `scores_by_id` have a column for each of the
            R - 1 difference rows. Its `mask` has rank 4.
        segment: the `Segment`.
        number: number of the block in the segment, an int or a scalar tensor.
        by_query: dict of the segment's tensors by query, `[B, N, blocks * C, X]`: the results of
            `query_tensors` and, for `backward`, those of `blockwise`: `row_sums` are the sums of
            weights times their gradients over all keys of a query.
        by_key: the result of `key_tensors`.
    """

    def __init__(self, call, segment, number, by_query, by_key):
        self._call, self._block_size = call, segment.block
        self._dtype = keras.backend.standardize_dtype(call.query.dtype)
        self._number = segment.number + number
        start = number * segment.block
        self._by_query = {name: segment.block_queries(x, start) for name, x in by_query.items()}
        # Keys are counted from the first key of the segment, and then from that of the block.
        smallest = call.query_offset + segment.start - segment.first_key
        self.first_key, self._num_keys = segment.keys_of_block(call, smallest + start)
        self._first_position = smallest + start - self.first_key
        self._by_key = by_key
        if not segment.is_single and call.sliding_window is not None:
            self._by_key = {name: self._slice_keys(name, x) for name, x in by_key.items()}
            if "mask" in self._by_query:
                self._by_query["mask"] = self._slice_keys("mask", self._by_query["mask"])
        position, num_keys = self._first_position, self._num_keys
        # If causal, later keys have an id: they are masked, and `_sum_by_id` drops their sums.
        distances = self._distances = call.distances.extended()
        if isinstance(position, int) and isinstance(num_keys, int):
            self._runs = Runs.of(distances, position, segment.block, num_keys)
        else:
            ends = None
            if isinstance(call.query_offset, int) and isinstance(segment.count, int):
                ends = smallest, smallest + (segment.count - 1) * segment.block
                ends = [x - segment.keys_of_block(call, x)[0] for x in ends]
            self._runs = Runs.of_block(distances, position, segment.block, num_keys, ends)

    def forward(self):
        """Returns (a dict of results `[B, N, C, X]`, weights before dropout `[B, N, C, S]`).

        The results are `"outputs"`, `"log_sums"` and, if needed, `"weights_by_id"` and `"total"`,
        those of `tables.Results` without the id of the reference row.
        """
        call = self._call
        weights, log_sums, total = weights_and_log_sums(self._scores())
        dropped = weights
        if call.dropout is not None:
            dropped = weights * self._dropout_factors(weights)
            total = ops.sum(dropped, axis=-1, keepdims=True)
        outputs = multiply(dropped, self._by_key["value"], self._dtype)
        if call.value_table is not None:
            sums, rows = self._sum_by_row(dropped), self._rows(call.value_table)
            outputs = outputs + matmul_rows(sums, rows, self._dtype)
        results = {"outputs": outputs, "log_sums": log_sums}
        if call.needs_weights_by_id:
            results["weights_by_id"] = self._sum_by_id(dropped)
        if call.needs_total:
            results["total"] = total
        return results, weights

    def backward(self, weights=None):
        """Returns (a dict of gradients `[B, N, C, X]`, a dict of terms of gradients).

        The first has the gradients of tensors by query. The second has terms of the gradients of
        keys, values and long tables. Weights are computed again unless they are given.
        """
        call, by_query, by_key, dtype = self._call, self._by_query, self._by_key, self._dtype
        if weights is None:
            weights = ops.exp(self._scores() - by_query["log_sums"])
        d_outputs, d_weights = by_query["d_outputs"], self._d_weights()
        dropped = weights
        if call.dropout is not None:
            factors = self._dropout_factors(weights)
            dropped, d_weights = weights * factors, d_weights * factors
        d_scores = weights * (d_weights - by_query["row_sums"])
        gradients = {"query": multiply(d_scores, by_key["key"], dtype)}
        if call.scores_by_id is not None:
            gradients["scores_by_id"] = self._sum_by_id(d_scores)
        terms = {
            "key": sum_over_queries(d_scores, by_query["query"], call.key.shape[1], dtype),
            "value": sum_over_queries(dropped, d_outputs, call.key.shape[1], dtype),
        }
        if call.key_table is not None:
            by_row, query = self._sum_by_row(d_scores), by_query["relative_query"]
            gradients["relative_query"] = matmul_rows(by_row, self._rows(call.key_table), dtype)
            terms["key_table"] = self._pad_rows(rows_gradient(by_row, query, call.key_table))
        if call.value_table is not None:
            by_row = self._sum_by_row(dropped)
            terms["value_table"] = self._pad_rows(
                rows_gradient(by_row, d_outputs, call.value_table)
            )
        return gradients, terms

    def _d_weights(self):
        """Returns the gradients of the weights after dropout `[B, N, C, S]`."""
        call, d_outputs = self._call, self._by_query["d_outputs"]
        d_weights = multiply(d_outputs, transpose(self._by_key["value"]), self._dtype)
        d_by_id = self._by_query.get("d_weights_by_id")
        if call.needs_total:
            d_weights = d_weights + self._by_query["d_total"]
        if call.value_table is not None:
            d_by_id = self._products_with_rows(d_outputs, call.value_table)
        return d_weights if d_by_id is None else self._add_by_id(d_weights, d_by_id)

    def _scores(self):
        """Returns the scores `[B, N, C, S]`, with a large negative number for masked entries."""
        call, by_query = self._call, self._by_query
        scores = multiply(by_query["query"], transpose(self._by_key["key"]), self._dtype)
        if call.key_table is not None:
            by_id = self._products_with_rows(by_query["relative_query"], call.key_table)
            scores = self._add_by_id(scores, by_id)
        elif call.scores_by_id is not None:
            scores = self._add_by_id(scores, by_query["scores_by_id"])
        masks = [self._by_key[name] for name in ("key_mask", "mask") if name in self._by_key]
        if "mask" in by_query:
            masks.append(by_query["mask"])
        masks += self._masks_of_positions()
        if not masks:
            return scores
        is_valid_key = functools.reduce(ops.logical_and, masks)
        return fill_masked(scores, is_valid_key, MASKED_SCORE)

    # Long tables `[R - 1, X]` or `[N, R - 1, X]`: the rows whose distances occur in the block.

    @functools.cached_property
    def _occurring(self):
        """The (first row, end) of the difference rows whose distances may occur."""
        distances, causal = self._call.distances, self._call.causal
        num_rows = distances.num_ids - 1
        sizes = self._block_size, self._num_keys, self._first_position
        if not all(isinstance(size, int) for size in sizes):
            return 0, num_rows
        runs, first = Runs.of_distances(distances, *sizes)
        # All distances to the left of the window have the first id.
        end = max(first + runs.width, min(runs.start, 1))
        # If causal, the first id is that of the reference row.
        return tuple(clip_size(x - causal, 0, num_rows) for x in (first, end))

    def _rows(self, table):
        first, end = self._occurring
        return table[..., first:end, :]

    def _pad_rows(self, rows):
        """The transpose of `_rows`."""
        first, end = self._occurring
        after = self._call.distances.num_ids - 1 - end
        return ops.pad(rows, [*[(0, 0)] * (len(rows.shape) - 2), (first, after), (0, 0)])

    def _products_with_rows(self, x, table):
        """Returns the products of `[B, N, C, X]` with a long table, `[B, N, C, R - 1]`."""
        first, end = self._occurring
        products = matmul_rows(x, self._rows(table), self._dtype, transpose_table=True)
        return pad_columns(products, first, table.shape[-2] - end)

    def _sum_by_row(self, weights):
        """Returns the columns of `_sum_by_id` for the rows of `_occurring`."""
        first, end = self._occurring
        return self._sum_by_id(weights)[..., first:end]

    def _slice_keys(self, name, x):
        """Returns the keys that the block reads, of a tensor of `by_key` or of a mask."""
        axis = 2 if name in BY_KEY else 3
        if axis == 3 and x.shape[3] == 1:
            return x
        start, shape = [0] * 4, list(ops.shape(x))
        start[axis], shape[axis] = self.first_key, self._num_keys
        return ops.slice(x, start_indices(*start), shape)

    def _masks_of_positions(self):
        """Returns the list of the masks `[C, S]` of causality and of the sliding window."""
        if self._call.sliding_window is None and not self._call.causal:
            return []
        first = self._first_position
        queries = ops.arange(self._block_size, dtype="int32")[:, None]
        queries = queries if isinstance(first, int) and first == 0 else first + queries
        return masked_distances(self._call).masks(queries, self._key_positions())

    def _key_positions(self):
        return ops.arange(self._num_keys, dtype="int32")

    def _dropout_factors(self, weights):
        """Returns the dropout factors of weights `[B, N, C, S]`. Repeated calls return the same."""
        return self._call.dropout.factors(ops.shape(weights), weights.dtype, self._number)

    # Terms by id: those of the window, and that of the keys before it.

    def _add_by_id(self, scores, by_id):
        """Returns scores `[B, N, C, S]` plus terms by id `[B, N, C, R - 1]` of their keys."""
        runs = self._runs
        if self._has_left_run():
            scores = scores + ops.where(self._in_left_run(), by_id[..., :1], 0)
        if self._has_window():
            # The reference id gets 0. If causal, the id of later keys gets 0 too: they are masked.
            by_id_with_reference = pad_columns(by_id, int(self._call.causal), 1)
            position = runs.position, runs.position_range
            terms = expand_ids(by_id_with_reference, self._distances, runs.width, *position)
            scores = self._add_to_window(scores, terms)
        return scores

    def _sum_by_id(self, weights):
        """Returns the sums of weights by id `[B, N, C, R - 1]`, the transpose of `_add_by_id`."""
        runs, distances = self._runs, self._distances
        if self._has_window():
            window = self._keys_to_window(weights)
            sums = sum_by_id(window, distances, runs.position, runs.position_range)
        else:
            sums = ops.repeat(ops.zeros_like(weights[..., :1]), distances.num_ids, axis=-1)
        # Without the reference id. If causal, it is the first, and the last is that of later keys.
        sums = sums[..., 1:-1] if self._call.causal else sums[..., :-1]
        if not self._has_left_run():
            return sums
        if isinstance(runs.start, int):
            left = weights[..., : runs.start]
        else:
            left = ops.where(self._in_left_run(), weights, 0)
        left = ops.sum(left, axis=-1, keepdims=True)
        return ops.concatenate([sums[..., :1] + left, sums[..., 1:]], axis=-1)

    def _keys_to_window(self, x):
        """Returns the window of `[.., S]`, `[.., width]`."""
        start, width = self._runs.start, self._runs.width
        if isinstance(start, int):
            return x[..., start : start + width]
        return ops.slice(x, start_indices(0, 0, 0, start), (*ops.shape(x)[:-1], width))

    def _add_to_window(self, x, terms):
        """Returns `[.., S]` plus terms `[.., width]` for the keys of the window."""
        start, width = self._runs.start, self._runs.width
        if isinstance(start, int):
            return x + pad_columns(terms, start, self._num_keys - start - width)
        return write_slice(x, self._keys_to_window(x) + terms, start, axis=3)

    def _has_window(self):
        return not (isinstance(self._runs.width, int) and self._runs.width == 0)

    def _has_left_run(self):
        """Returns whether keys before the window may have a relative term. If causal, it is 0."""
        start = self._runs.start
        return not self._call.causal and not (isinstance(start, int) and start == 0)

    def _in_left_run(self):
        return self._key_positions() < self._runs.start


def query_tensors(call, segment):
    """Returns a dict of the tensors by query that the scores of a segment's blocks need."""
    tensors = {name: getattr(call, name) for name in ("query", "scores_by_id", "relative_query")}
    if call.mask is not None and call.mask.shape[2] != 1:
        tensors["mask"] = segment.keys(call.mask, axis=3)
    return {name: segment.queries(x) for name, x in tensors.items() if x is not None}


def key_tensors(call, segment):
    """Returns a dict of the tensors by key that a segment's blocks read."""
    tensors = {"key": segment.keys(call.key), "value": segment.keys(call.value)}
    if call.key_mask is not None:
        tensors["key_mask"] = segment.keys(call.key_mask[:, None, None], axis=3)
    if call.mask is not None and call.mask.shape[2] == 1:
        tensors["mask"] = segment.keys(call.mask, axis=3)
    return tensors


def matmul_rows(x, rows, dtype, *, transpose_table=False):
    """Returns `tables.matmul_table`, multiplied and cast as by `heads.multiply`."""
    x, rows = ops.cast(x, dtype), ops.cast(rows, dtype)
    product = matmul_table(x, rows, transpose_table=transpose_table)
    return ops.cast(product, accumulation_dtype(dtype))


def rows_gradient(by_row, x, table):
    """Returns the gradient of the rows of a table, `[R - 1, X]` or `[N, R - 1, X]`.

    It is `by_rowᵀ·x`, summed over the batch and over heads that share the table.

    Args:
        by_row: `[B, N, C, R - 1]`.
        x: `[B, N, C, X]`.
        table: the table, whose shape and dtype count.
    """
    dtype = keras.backend.standardize_dtype(table.dtype)
    if len(table.shape) == 3:
        gradient = ops.sum(multiply(transpose(by_row), x, dtype), axis=0)
        is_shared = table.shape[0] == 1
        return ops.sum(gradient, axis=0, keepdims=True) if is_shared else gradient
    batch, heads, length, _ = ops.shape(x)
    by_row, x = (
        ops.cast(ops.reshape(y, (batch * heads * length, ops.shape(y)[-1])), dtype)
        for y in (by_row, x)
    )
    return ops.cast(backend.matmul(transpose(by_row), x), accumulation_dtype(dtype))
