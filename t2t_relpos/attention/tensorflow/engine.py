"""Relative attention for TensorFlow without XLA, with a custom gradient.

A `Block` of the score matrix has a forward and a backward pass. The complete matrix is one block.
For long sequences, heads are processed in groups and queries in blocks, so that the scores of a
block fit into the processor's caches. What does not depend on keys, such as products of queries and
table rows, is computed for all blocks together.

Run time is dominated by passes over the scores. The gradient of softmax subtracts a row sum from
every entry; here it is computed from the outputs, so that the backward pass reads the matrix once
instead of four times.

Shapes: Hv depth of values; G heads of a group; C queries of a block; D diagonals of the band.
"""

import functools
from typing import Any, NamedTuple

import tensorflow as tf

from t2t_relpos.attention.band import Distances, extend_table
from t2t_relpos.attention.blocks import all_queries_have_keys
from t2t_relpos.attention.masks import key_padding_mask
from t2t_relpos.attention.tables import Results
from t2t_relpos.attention.tensorflow.diagonals import (
    Band,
    BandShape,
    QueryBand,
    TableTerms,
    matmul,
)
from t2t_relpos.backend import MASKED_SCORE, accumulation_dtype, clip_size, dropout_factors
from t2t_relpos.backend.tensorflow import shared_function

DIFFERENTIABLE = "query", "key", "value", "key_table", "value_table"


class _Arguments(NamedTuple):
    """Arguments of the shared function: tensors, or None, and Python constants.

    The first five, those of `DIFFERENTIABLE`, are as in `attend`.

    Args:
        distances: the `Distances` of the tables.
        masks: tuple of bool masks, each broadcasts to `[B, N, T, S]`. True = attend. In one block,
            they include causality and the sliding window.
        seed: seed of the dropout, or None.
        rate: dropout rate, or None.
        causal: whether keys after a query are masked.
        may_be_fully_masked: whether a query may have no valid keys.
        chunk: number of keys of a chunk of the left tail, an int or a scalar tensor.
        query_offset: key position of query 0, an int or a scalar tensor. Unused in one block, as
            all that follow.
        sliding_window: a query attends to keys at distances less than this, or None.
        largest_block: largest C. None: one block.
        keys_per_group: G times the number of keys that a block reads is at most this.
        save_weights: whether weights are saved for the gradient.
    """

    query: Any
    key: Any
    value: Any
    key_table: Any
    value_table: Any
    distances: Distances
    masks: tuple
    seed: Any
    rate: float | None
    causal: bool
    may_be_fully_masked: bool
    chunk: Any
    query_offset: Any = None
    sliding_window: int | None = None
    largest_block: int | None = None
    keys_per_group: int | None = None
    save_weights: bool = True

    @property
    def band_shape(self):
        """The `BandShape` of the tables."""
        # A causal band with distance 1 has a single diagonal, which TensorFlow treats differently.
        # The bidirectional band has more; those of masked keys have no effect.
        causal = self.causal and self.distances.left > 1
        return BandShape(self.distances, causal=causal, chunk=self.chunk)

    @property
    def lengths(self):
        """(T, S), ints or, if unknown, scalar tensors."""
        return [tf.shape(x)[2] if x.shape[2] is None else x.shape[2] for x in self[:2]]


@tf.autograph.experimental.do_not_convert
def attend_in_one_block(call, sizes):
    """Returns the outputs of attention with the query offset `S - T`."""
    mask = call.combined_mask()
    is_masked = call.key_mask is not None or call.mask is not None
    masks = () if mask is None else (mask,)
    chunk = sizes.chunk_of(call.length_k)
    arguments = _arguments(call, 1, masks=masks, may_be_fully_masked=is_masked, chunk=chunk)
    return Results(_attend(arguments))


def _arguments(call, least, **options):
    """Returns the `_Arguments` of a call: its tensors and dropout, and options.

    Tables are extended to distances of at least 1, and of at least `least` to the left.
    """
    tensors = {name: getattr(call, name) for name in DIFFERENTIABLE}
    tensors = {n: None if x is None else tf.convert_to_tensor(x) for n, x in tensors.items()}
    distances = call.distances.extended(least=least)
    for name in ("key_table", "value_table"):
        if tensors[name] is not None:
            tensors[name] = extend_table(tensors[name], call.distances, distances)
    seed, rate = (call.dropout.seed, call.dropout.rate) if call.dropout else (None, None)
    causal = call.causal
    return _Arguments(
        **tensors, distances=distances, seed=seed, rate=rate, causal=causal, **options
    )


@tf.autograph.experimental.do_not_convert
def attend_in_blocks(call, sizes, *, save_weights):
    """Returns the outputs.

    If `save_weights`, the gradient reads saved attention weights instead of rematerializing them. A
    SavedModel can't include the gradient then.
    """
    masks = [None if call.key_mask is None else key_padding_mask(call.key_mask), call.mask]
    masks = tuple(mask for mask in masks if mask is not None)
    offset = call.query_offset
    offset = offset if isinstance(offset, int) else tf.cast(offset, tf.int32)
    arguments = _arguments(
        call,
        2 if call.causal else 1,
        masks=masks,
        query_offset=offset,
        sliding_window=call.sliding_window,
        may_be_fully_masked=bool(masks) or not all_queries_have_keys(call),
        chunk=sizes.chunk,
        largest_block=sizes.block_of(call),
        keys_per_group=sizes.group,
        save_weights=save_weights,
    )
    query, key, value = arguments[:3]
    if query.shape[0] and query.shape[2] and key.shape[2]:  # known, and not 0
        return Results(_attend(arguments))

    def empty():
        return tf.zeros(tf.concat([tf.shape(query)[:-1], tf.shape(value)[-1:]], 0), query.dtype)

    # A replica may have an empty batch. Its loops run no step, so the output shape is unknown.
    # Without queries there are no blocks, and without keys no diagonals.
    counts = tf.stack([*tf.unstack(tf.shape(query))[::2], tf.shape(key)[2]])
    outputs = tf.cond(tf.reduce_all(counts > 0), lambda: _attend(arguments), empty)
    return Results(tf.ensure_shape(outputs, (*query.shape[:-1], value.shape[-1])))


@shared_function
def _attend(arguments):
    names = [name for name in DIFFERENTIABLE if getattr(arguments, name) is not None]

    @tf.custom_gradient
    def run(*args):
        attention = _Attention(arguments._replace(**dict(zip(names, args))))

        def gradient(d_outputs):
            gradients = attention.backward(d_outputs)
            pairs = [(gradients[name], x) for name, x in zip(names, args, strict=True)]
            return [tf.ensure_shape(tf.cast(y, x.dtype), x.shape) for y, x in pairs]

        return attention.forward(), gradient

    return run(*(getattr(arguments, name) for name in names))


class _Attention:
    """One forward pass and its gradient. Queries and keys have the layout of the blocks."""

    def __init__(self, arguments):
        self._arguments, self._dtype = arguments, arguments.query.dtype
        self._accumulation = tf.as_dtype(accumulation_dtype(self._dtype))
        layout = _OneBlock if arguments.largest_block is None else _BlockLoops
        blocks = self._blocks = layout(arguments, self._accumulation)
        self._query = blocks.split_queries(arguments.query)
        self._key, self._value = map(blocks.split_keys, (arguments.key, arguments.value))
        self._key_terms, self._value_terms = (
            TableTerms(
                blocks.query_band,
                None if x is None else blocks.split_table(tf.cast(x, self._accumulation)),
                self._dtype,
            )
            for x in (arguments.key_table, arguments.value_table)
        )

    def forward(self):
        """Returns the outputs."""
        query = self._key_terms.augment(self._query)
        results = self._blocks.forward(query, self._key, self._value)
        self._total = results.get("total", tf.ones([], self._accumulation))
        self._band = results.get("band")
        self._sums = self._value_terms.sum_by_id(results)
        outputs = self._value_terms.add_values(results["outputs"], self._sums, self._total)
        # Fully masked queries: softmax is arbitrary, so zero the output and the incoming gradient.
        self._has_valid_key = results.get("has_valid_key")
        if self._has_valid_key is not None:
            outputs *= self._has_valid_key
        self._outputs = outputs
        outputs = tf.cast(self._blocks.join_queries(outputs), self._dtype)
        query, _, value = self._arguments[:3]
        return tf.ensure_shape(outputs, (*query.shape[:-1], value.shape[-1]))

    def backward(self, d_outputs):
        """Returns a dict of the gradients of query, key, value and the tables."""
        blocks, key_terms, value_terms = self._blocks, self._key_terms, self._value_terms
        d_outputs = blocks.split_queries(d_outputs)
        if self._has_valid_key is not None:
            d_outputs *= tf.cast(self._has_valid_key, self._dtype)
        by_query = self._output_gradients(d_outputs)
        by_query |= {"query": self._query, "d_outputs": d_outputs}
        query = None if self._arguments.save_weights else key_terms.augment(self._query)
        results, d_keys = blocks.backward(by_query, query, self._key, self._value)
        d_by_id = key_terms.sum_by_id(results)
        d_key_table = key_terms.gradient(d_by_id, self._query)
        d_value_table = value_terms.gradient(self._sums, d_outputs, self._total)
        return {
            "query": blocks.join_queries(key_terms.add_values(results["d_query"], d_by_id)),
            "key": blocks.join_keys(d_keys["key"]),
            "value": blocks.join_keys(d_keys["value"]),
            "key_table": blocks.join_table(d_key_table, self._arguments.key_table),
            "value_table": blocks.join_table(d_value_table, self._arguments.value_table),
        }

    def _output_gradients(self, d_outputs):
        """Returns a dict of the tensors by query from which blocks compute d_scores."""
        wide_d_outputs = tf.cast(d_outputs, self._accumulation)
        row_sums = tf.reduce_sum(wide_d_outputs * self._outputs, -1, keepdims=True)
        bias = self._value_terms.reference_scores(wide_d_outputs)
        if self._arguments.rate is None:
            bias = -row_sums if bias is None else bias - row_sums
        # In 16 bits, the bias is added after the product: the rounding error of a column, the same
        # for all keys of a query, would not average out.
        in_column = self._blocks.adds_bias_in_column and self._dtype == self._accumulation
        terms = self._value_terms.augment(d_outputs, bias, in_column=in_column)
        if "diagonals" in terms:
            terms["diagonals"] *= self._band
        return terms | {"row_sums": row_sums}


class Block(NamedTuple):
    """A block of the score matrix, `[.., C, S]`, with any leading axes.

    Scores, weights and sums have the accumulation dtype.

    Args:
        arguments: the `_Arguments` of the call.
        band: the `Band` of the block.
        mask: bool, broadcasts to the block, or None. True = attend.
        number: number of the block, for its dropout factors. Default: None, a single block.
    """

    arguments: _Arguments
    band: Band
    mask: Any
    number: Any = None

    def weights(self, query, key):
        """Returns the weights before dropout `[.., C, S]`.

        `query` is a dict, the queries as `TableTerms.augment` returns them.
        """
        scores = self._products(query, key)
        if "diagonals" in query:
            scores, _ = self.band.add(scores, query["diagonals"])
        if self.mask is not None:
            scores = tf.where(self.mask, scores, tf.cast(MASKED_SCORE, scores.dtype))
        return tf.nn.softmax(scores)

    def drop(self, weights):
        """Returns the weights after dropout. Repeated calls drop the same."""
        rate = self.arguments.rate
        if rate is None:
            return weights
        return weights * dropout_factors(
            tf.shape(weights), rate, self.arguments.seed, weights.dtype, self.number
        )

    def forward(self, dropped, value):
        """Returns a dict of results by query, `[.., C, X]` or, of the band, `[.., X, C]`.

        They are `"outputs"` without the value table; with a value table, those of `Band.sums`; with
        dropout, `"total"`, the sum of the weights after dropout; and, if a query may be fully
        masked, `"has_valid_key"`, 0 or 1. `dropped` are the weights after dropout.
        """
        results = {"outputs": matmul(dropped, value, self.arguments.query.dtype)}
        if self.arguments.value_table is not None:
            results |= self.band.sums(dropped)
        if self.arguments.rate is not None:
            results["total"] = tf.reduce_sum(dropped, -1, keepdims=True)
        if self.arguments.may_be_fully_masked:
            has_valid_key = tf.reduce_any(self.mask, -1, keepdims=True)
            results["has_valid_key"] = tf.cast(has_valid_key, dropped.dtype)
        return results

    def backward(self, weights, dropped, by_query, key, value):
        """Returns (a dict of results by query as in `forward`, a dict of gradients of the keys).

        The first has `"d_query"`, without the key table, and, with a key table, those of
        `Band.sums`. The second has `"key"` and `"value"`. `by_query` has gradients of the outputs,
        as `_Attention.backward` makes it.
        """
        dtype = self.arguments.query.dtype
        d_scores = self._products(by_query, value) * dropped
        if self.arguments.rate is not None:
            d_scores -= by_query["row_sums"] * weights
        band = None
        if "diagonals" in by_query:
            # The band is added last, because `add` also returns the band that the sums need.
            d_scores, band = self.band.add(d_scores, by_query["diagonals"])
        results = {"d_query": matmul(d_scores, key, dtype)}
        if self.arguments.key_table is not None:
            results |= self.band.sums(d_scores, band)
        return results, {
            "key": matmul(d_scores, by_query["query"], dtype, transpose_a=True),
            "value": matmul(dropped, by_query["d_outputs"], dtype, transpose_a=True),
        }

    def _products(self, by_query, keys):
        """Returns the products with keys or values, and the terms outside of the band."""
        if "augmented" in by_query:
            x, keys = by_query["augmented"], self.band.append_key_columns(keys)
        else:
            x = by_query["plain"]
        products = matmul(x, keys, self.arguments.query.dtype, transpose_b=True)
        return products + by_query["bias"] if "bias" in by_query else products


class _OneBlock:
    """The complete score matrix as one block. Weights are saved before and after dropout.

    For sequences that may be shorter than the band, keys are padded so that every diagonal exists.

    Args:
        arguments: the `_Arguments`.
        dtype: dtype of scores and weights.
    """

    adds_bias_in_column = True

    def __init__(self, arguments, dtype):
        (length_q, length_k), shape = arguments.lengths, arguments.band_shape
        first = length_k - length_q
        self._length_k = length_k
        self._padding = left, right = _band_padding(shape, first, first, length_q, length_k)
        self.query_band = QueryBand(shape, first + left + tf.range(length_q), dtype)
        width = length_k + left + right
        band = Band(self.query_band, first + left, length_q, width, sum_by_matmul=True)
        self._block = Block(arguments, band, self._mask(arguments.masks))

    def _mask(self, masks):
        """Returns the mask with the padding of keys, or None."""
        if not masks and _is_zero(*self._padding):
            return None
        mask = masks[0] if masks else tf.ones([1, self._length_k], tf.bool)
        return _padded_keys(mask, self._length_k, *self._padding)

    @staticmethod
    def _unchanged(x):
        return x

    split_queries = join_queries = split_table = _unchanged

    def split_keys(self, x):
        return _pad(x, *self._padding)

    def join_keys(self, x):
        left, right = self._padding
        return x if _is_zero(left, right) else x[..., left : left + self._length_k, :]

    def join_table(self, x, table):
        return x

    def forward(self, query, key, value):
        """Returns the results of `Block.forward`. `query` is a dict, as in `Block.weights`."""
        self._weights = self._block.weights(query, key)
        self._dropped = self._block.drop(self._weights)
        return self._block.forward(self._dropped, value)

    def backward(self, by_query, query, key, value):
        """Returns the results of `Block.backward`. `query` is None: weights are saved."""
        return self._block.backward(self._weights, self._dropped, by_query, key, value)


class _BlockLoops:
    """Loops over groups of heads and blocks of queries.

    Queries are padded to whole blocks, and keys so that each block has every diagonal of its band.
    If causal, a block does not read keys after its last query. With a sliding window, it does not
    read keys outside of the windows of its queries.

    Shapes: queries `[groups, blocks, G, C, X]`, keys `[groups, G, padded keys, X]`, tables
    `[groups, 1, G, R, H]`, or `[1, 1, 1, R, H]` for all heads.

    Args:
        arguments: the `_Arguments`.
        dtype: dtype of scores and weights.
    """

    def __init__(self, arguments, dtype):
        self._arguments, self._dtype, shape = arguments, dtype, arguments.band_shape
        # A causal block has no other columns. Adding one to its keys would copy them.
        self.adds_bias_in_column = not shape.causal
        self._length_q, self._length_k = arguments.lengths
        num_heads, num_keys = arguments.query.shape[1], self._length_k
        if arguments.sliding_window is not None:
            most_keys = arguments.largest_block + 2 * arguments.sliding_window
            num_keys = clip_size(most_keys, 0, num_keys)
        self._heads = _largest_divisor(num_heads, arguments.keys_per_group // _maximum(num_keys, 1))
        self._groups_per_entry = num_heads // self._heads
        self._num_groups = tf.shape(arguments.query)[0] * self._groups_per_entry
        largest_block = arguments.largest_block
        self._num_blocks = _maximum((self._length_q + largest_block - 1) // largest_block, 1)
        # Blocks of equal size need the least padding of the last one.
        self._block_size = (self._length_q + self._num_blocks - 1) // self._num_blocks
        last = arguments.query_offset + (self._num_blocks - 1) * self._block_size
        self._left, self._right = _band_padding(
            shape, arguments.query_offset, last, self._block_size, self._length_k
        )
        self._width = self._left + self._length_k + self._right
        positions = self._first(tf.range(self._num_blocks))[:, None] + tf.range(self._block_size)
        self.query_band = QueryBand(shape, positions[:, None], dtype)
        self._masks = [self._padded_mask(mask) for mask in arguments.masks]
        if not (self._masks or _is_zero(self._left, self._right)):
            self._masks = [self._padded_mask(tf.ones([1, self._length_k], tf.bool))]

    def _first(self, number):
        """Returns the position of a block's first query among padded keys."""
        return self._arguments.query_offset + self._left + number * self._block_size

    def _key_range(self, number):
        """Returns (first, end) of the padded keys that a block reads."""
        position, window = self._first(number), self._arguments.sliding_window
        end = self._width
        if self._arguments.causal:
            end = clip_size(position + self._block_size, 0, end)
        if window is None:
            return 0, end
        # The block also reads the keys of its band.
        shape = self.query_band.shape
        left, right = shape.diagonals
        first = clip_size(position - max(window, left) + 1, 0, end)
        if not shape.causal:
            first = first // shape.chunk * shape.chunk
            last_position = position + self._block_size - 1
            end = clip_size(last_position + max(window, right), 0, end)
        return first, end

    def split_queries(self, x):
        """Splits queries, `[B, N, T, X]` -> `[groups, blocks, G, C, X]`."""
        x = self._pad_queries(self._group_heads(x))
        shape = [self._num_groups, self._heads, self._num_blocks, self._block_size, x.shape[3]]
        return tf.transpose(tf.reshape(x, tf.stack(shape)), [0, 2, 1, 3, 4])

    def join_queries(self, x):
        """Joins blocks of queries. It is the inverse of `split_queries`."""
        x = tf.transpose(x, [0, 2, 1, 3, 4])
        shape = [self._num_groups, self._heads, self._num_blocks * self._block_size, tf.shape(x)[4]]
        x = tf.reshape(x, tf.stack(shape))[:, :, : self._length_q]
        return tf.reshape(x, tf.concat([tf.shape(self._arguments.query)[:3], tf.shape(x)[3:]], 0))

    def split_keys(self, x):
        """Groups and pads keys, `[B, N, S, X]` -> `[groups, G, padded keys, X]`."""
        return _pad(self._group_heads(x), self._left, self._right)

    def join_keys(self, x):
        """Removes the padding of keys, and their groups. It is the inverse of `split_keys`."""
        x = x[..., self._left : self._left + self._length_k, :]
        return tf.reshape(x, tf.concat([tf.shape(self._arguments.key)[:3], tf.shape(x)[3:]], 0))

    def split_table(self, table):
        """Returns a table with the leading axes of queries."""
        if len(table.shape) == 2:
            return table[None, None, None]
        table = tf.reshape(table, tf.stack([-1, 1, self._heads, *table.shape[1:]]))
        return tf.tile(table, tf.stack([tf.shape(self._arguments.query)[0], 1, 1, 1, 1]))

    def join_table(self, x, table):
        """Returns the gradient of a table from that of the result of `split_table`, or None."""
        if table is None:
            return None
        return tf.reduce_sum(tf.reshape(x, [-1, *table.shape]), 0)

    def _group_heads(self, x):
        """Groups the heads of `[B, N, X, H]` as `[groups, G, X, H]`."""
        shape = [self._num_groups, self._heads, tf.shape(x)[2], x.shape[3]]
        return tf.reshape(x, tf.stack(shape))

    def _pad_queries(self, x, value=0):
        """Pads queries to whole blocks, `[.., T, X]` -> `[.., all blocks' queries, X]`."""
        return _pad(x, 0, self._num_blocks * self._block_size - self._length_q, value=value)

    def _padded_mask(self, mask):
        """Returns a mask as `[1 or B, 1 or N, 1 or all blocks' queries, padded keys]`."""
        mask = tf.convert_to_tensor(mask)
        mask = tf.reshape(mask, tf.concat([[1] * (4 - len(mask.shape)), tf.shape(mask)], 0))
        mask = _padded_keys(mask, self._length_k, self._left, self._right)
        return mask if mask.shape[2] == 1 else self._pad_queries(mask, False)

    def _mask(self, group, number):
        """Returns the mask of a block, which broadcasts to `[G, C, keys]`, or None."""
        first_query, masks, window = number * self._block_size, [], self._arguments.sliding_window
        first_key, end = self._key_range(number)
        queries = self._first(number) + tf.range(self._block_size)[:, None]
        keys = tf.range(first_key, end)
        if self._arguments.causal:
            masks.append(keys <= queries)
        if window is not None:
            masks.append(keys > queries - window)
            if not self._arguments.causal:
                masks.append(keys < queries + window)
        for mask in self._masks:
            batch_size, num_heads = tf.unstack(tf.shape(mask)[:2])
            entry = tf.minimum(group // self._groups_per_entry, batch_size - 1)
            head = tf.minimum(group % self._groups_per_entry * self._heads, num_heads - 1)
            is_valid = mask[entry, head : head + self._heads, :, first_key:end]
            if mask.shape[2] != 1:
                is_valid = is_valid[:, first_query : first_query + self._block_size]
            masks.append(is_valid)
        return functools.reduce(tf.logical_and, masks) if masks else None

    def _block(self, group, number, index):
        """Returns a `Block` `[G, C, keys that it reads]`."""
        first_key, end = self._key_range(number)
        first, size = self._first(number) - first_key, self._block_size
        band = Band(self.query_band, first, size, end - first_key, first_key=first_key)
        return Block(self._arguments, band, self._mask(group, number), index)

    def forward(self, query, key, value):
        """Returns a dict of the results of `Block.forward` for all blocks."""
        query = _flatten(query)

        def one_block(block, index, group, keys):
            weights = block.weights(_at(query, index), key[group][:, keys])
            results = block.forward(block.drop(weights), value[group][:, keys])
            if "has_valid_key" in results:
                results["has_valid_key"] += tf.zeros_like(results["outputs"][..., :1])
            return results | {"weights": weights}, {}

        names = ["outputs"] + self._sum_names(self._arguments.value_table)
        names += ["total"] if self._arguments.rate is not None else []
        names += ["has_valid_key"] if self._arguments.may_be_fully_masked else []
        names += ["weights"] if self._arguments.save_weights else []
        results, _ = self._run(names, one_block, {})
        self._weights = results.pop("weights", None)
        return results

    def backward(self, by_query, query, key, value):
        """Returns the results of `Block.backward` for all blocks. `query` may be None."""
        by_query, query = _flatten(by_query), _flatten(query or {})

        def one_block(block, index, group, keys):
            keys, values = key[group][:, keys], value[group][:, keys]
            if self._weights is None:
                weights = block.weights(_at(query, index), keys)
            else:
                weights = self._weights.read(index)
            weights = tf.ensure_shape(weights, [None, None, None])
            return block.backward(weights, block.drop(weights), _at(by_query, index), keys, values)

        names = ["d_query"] + self._sum_names(self._arguments.key_table)
        return self._run(names, one_block, {"key": key, "value": value})

    def _sum_names(self, table):
        """Returns the names of the results of `Band.sums`, none without a table."""
        names = ["band"] if self.query_band.shape.causal else ["band", "tail"]
        return [] if table is None else names

    def _run(self, names, one_block, keys):
        """Calls `one_block` for all blocks, one after the other.

        Args:
            names: names of the results by query.
            one_block: function of the `Block`, its index among the blocks of all groups, the index
                of its group, and the slice of the keys that it reads. It returns (a dict of results
                by query, a dict of gradients of those keys).
            keys: dict of the keys and values for which `one_block` returns gradients.

        Returns:
            (a dict of results by query, weights in a TensorArray; a dict of gradients of keys).
        """

        def run_block(group, number, state):
            arrays, sums = state
            index, (first, end) = group * self._num_blocks + number, self._key_range(number)
            block = self._block(group, number, index)
            results, terms = one_block(block, index, group, slice(first, end))
            after = 0 if end is self._width else self._width - end
            terms = {name: _pad(x, first, after) for name, x in terms.items()}
            sums = {name: tf.ensure_shape(x + terms[name], x.shape) for name, x in sums.items()}
            return _write(arrays, index, results), sums

        def run_group(group, state):
            arrays, sum_arrays = state
            sums = {name: tf.zeros_like(x[group], self._dtype) for name, x in keys.items()}
            arrays, sums = _loop(
                self._num_blocks, functools.partial(run_block, group), (arrays, sums)
            )
            return arrays, _write(sum_arrays, group, sums)

        size = self._num_groups * self._num_blocks
        arrays = {name: tf.TensorArray(self._dtype, size) for name in names if name != "weights"}
        if "weights" in names:
            options = {"infer_shape": False, "clear_after_read": False}
            arrays["weights"] = tf.TensorArray(self._dtype, size, **options)
        sum_arrays = {name: tf.TensorArray(self._dtype, self._num_groups) for name in keys}
        results, sums = _loop(self._num_groups, run_group, (arrays, sum_arrays))
        for name in results.keys() - {"weights"}:
            blocks = tf.ensure_shape(results[name].stack(), [None] * 4)
            leading = [self._num_groups, self._num_blocks]
            shape = tf.concat([leading, tf.shape(blocks)[1:]], 0)
            results[name] = tf.reshape(blocks, shape)
        return results, {name: array.stack() for name, array in sums.items()}


def _band_padding(shape, first, last, size, length_k):
    """Returns the keys to add (left, right), so that blocks have each diagonal of the band.

    `first` and `last` are key positions of the first query of the first and of the last block.
    """
    below, above = shape.diagonals
    # The band of the first block ends after the first key, and no diagonal starts before it.
    left = _maximum(0, below - size - first, 1 - above - first)
    # The band of the last block ends at `last + above`. With `needed_keys` keys, one diagonal
    # contains all queries of the block (causal), or the tail of its last query ends at a key.
    needed_keys = last + size + 1 - below
    if not shape.causal:
        needed_keys = last + size - 1 - shape.distances.left
    needed_keys = _maximum(last + above, needed_keys, size - left)
    return left, _maximum(0, needed_keys - length_k)


def _padded_keys(mask, length_k, left, right):
    """Returns a mask `[.., 1 or S]` as `[.., padded keys]`, False for the padding."""
    mask = tf.convert_to_tensor(mask)
    mask = tf.broadcast_to(mask, tf.concat([tf.shape(mask)[:-1], [length_k]], 0))
    return _pad(mask, left, right, -1, value=False)


def _is_zero(*sizes):
    """Returns whether all sizes are known to be 0."""
    return all(isinstance(size, int) and size == 0 for size in sizes)


def _maximum(*sizes):
    """Returns the largest size, an int if all are ints."""
    if all(isinstance(size, int) for size in sizes):
        return max(sizes)
    return tf.reduce_max(tf.stack(sizes))


def _largest_divisor(number, limit):
    """Returns the largest divisor of a number that is at most `limit`, or 1."""
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    if isinstance(limit, int):
        return max(n for n in divisors if n == 1 or n <= limit)
    return tf.reduce_max([tf.where(n <= limit, n, 1) for n in divisors])


def _pad(x, before, after, axis=-2, value=0):
    if _is_zero(before, after):
        return x
    widths = [[0, 0]] * len(x.shape)
    widths[axis] = [before, after]
    return tf.pad(x, widths, constant_values=value)


def _flatten(by_query):
    """Merges two axes of a dict of tensors, `[groups, blocks, ..]` -> `[groups * blocks, ..]`."""
    return {n: tf.reshape(x, tf.concat([[-1], tf.shape(x)[2:]], 0)) for n, x in by_query.items()}


def _at(by_query, index):
    """Returns a dict of the tensors of one block."""
    return {name: x[index] for name, x in by_query.items()}


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
