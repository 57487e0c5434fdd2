"""Relative attention for TensorFlow without XLA, with a custom gradient.

The score matrix is one `ScoreBlock`. For long sequences, heads are processed in groups and queries
in blocks, so that the scores of a block fit into the processor's caches. What does not depend on
keys is computed for all blocks together: also the products with difference rows (see `band`), which
are outside of the custom gradient (see `tables`).

Shapes: C queries of a block; R - 1 ids without that of the reference row, from right to left.
"""

import functools
from typing import Any, NamedTuple

import tensorflow as tf

from t2t_relpos.attention.band import Distances, difference_rows, masked_distances
from t2t_relpos.attention.masks import key_padding_mask
from t2t_relpos.attention.tables import Results, extend_tables
from t2t_relpos.attention.tensorflow.diagonals import Diagonals, QueryBand, ScoreBlock, matmul
from t2t_relpos.backend import accumulation_dtype, clip_size
from t2t_relpos.backend.tensorflow import shared_function

TENSORS = "query", "key", "value", "key_table", "value_table"


class Arguments(NamedTuple):
    """Arguments of the shared function: tensors, or None, and Python constants.

    The first five, those of `TENSORS`, are as in `attend`.

    Args:
        distances: the `Distances` of the tables, at least 1, or (at least 2, 0) if causal.
        masks: tuple of bool masks, each broadcasts to `[B, N, T, S]`. True = attend. In one block,
            they include causality and the sliding window.
        seed: seed of the dropout, or None.
        rate: dropout rate, or None.
        causal: whether keys after a query are masked.
        may_be_fully_masked: whether a query may have no valid keys.
        chunk: number of keys of a chunk of the left tail, at least 2, an int or a scalar tensor.
            Unused without a left tail.
        query_offset: key position of query 0, an int or a scalar tensor. Unused in one block.
        sliding_window: a query attends to keys at distances less than this, or None.
        largest_block: largest C. None: one block.
        keys_per_group: heads of a group times the keys that a block reads are at most this.
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
    def diagonals(self):
        """The `Distances` between which the diagonals are: also those of the last chunk's keys."""
        left, right = self.distances
        return Distances(left, 1) if self.causal else Distances(left + self.chunk, right)

    @property
    def has_total(self):
        """Whether a value table is multiplied with sums of weights other than 1."""
        return self.rate is not None and self.value_table is not None

    @property
    def lengths(self):
        """(T, S), ints or, if unknown, scalar tensors."""
        return [tf.shape(x)[2] if x.shape[2] is None else x.shape[2] for x in self[:2]]


def attend_in_one_block(call, sizes):
    """Returns the outputs of attention with the query offset `S - T`."""
    mask = call.combined_mask()
    is_masked = call.key_mask is not None or call.mask is not None
    masks = () if mask is None else (mask,)
    chunk = sizes.chunk_of(call.length_k)
    arguments = _arguments(call, masks=masks, may_be_fully_masked=is_masked, chunk=chunk)
    return Results(_attend(arguments))


def _arguments(call, **options):
    """Returns the `Arguments` of a call: its tensors and dropout, and options."""
    # A causal band with distance 1 has a single diagonal, which TensorFlow treats differently.
    call = extend_tables(call, left=2 if call.causal else 1)
    tensors = {name: getattr(call, name) for name in TENSORS}
    tensors = {n: None if x is None else tf.convert_to_tensor(x) for n, x in tensors.items()}
    seed, rate = (call.dropout.seed, call.dropout.rate) if call.dropout else (None, None)
    fields = {"distances": call.distances, "seed": seed, "rate": rate, "causal": call.causal}
    return Arguments(**tensors, **fields, **options)


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
        masks=masks,
        query_offset=offset,
        sliding_window=call.sliding_window,
        may_be_fully_masked=call.may_be_fully_masked,
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
    """Returns the outputs. The products with tables are here, outside of the custom gradient."""
    dtype, wide = arguments.query.dtype, tf.as_dtype(accumulation_dtype(arguments.query.dtype))
    layout = _OneBlock if arguments.largest_block is None else _BlockLoops
    blocks = layout(arguments, wide)
    tensors = {"query": blocks.split_queries(arguments.query)}
    tensors |= {name: blocks.split_keys(getattr(arguments, name)) for name in ("key", "value")}
    if arguments.key_table is not None:
        rows, _ = _difference_rows(blocks, arguments.key_table, tensors["query"])
        tensors["scores_by_id"] = matmul(rows, tensors["query"], dtype, transpose_b=True)
    results = _differentiate(blocks, tensors)
    outputs = results["outputs"]
    if arguments.value_table is not None:
        rows, reference = _difference_rows(blocks, arguments.value_table, outputs)
        outputs += matmul(results["weights_by_id"], rows, dtype, transpose_a=True)
        outputs += results["total"] * reference if "total" in results else reference
    # Fully masked queries: softmax is arbitrary, so zero the output and the incoming gradient.
    if "has_valid_key" in results:
        outputs *= tf.stop_gradient(results["has_valid_key"])
    outputs = tf.cast(blocks.join_queries(outputs), dtype)
    return tf.ensure_shape(outputs, (*arguments.query.shape[:-1], arguments.value.shape[-1]))


def _difference_rows(blocks, table, by_query):
    """Returns (difference rows `[.., R - 1, H]` from right to left, reference row `[.., 1, H]`)."""
    wide = tf.as_dtype(accumulation_dtype(table.dtype))
    rows, reference = difference_rows(
        blocks.split_table(tf.cast(table, wide)), causal=blocks.arguments.causal
    )
    rows = rows[..., ::-1, :]
    if wide != table.dtype:
        # The gradient is then a sum over the batch in the accumulation dtype.
        leading = tf.shape(by_query)[:-2]
        rows = tf.broadcast_to(rows, tf.concat([leading, tf.shape(rows)[-2:]], 0))
    return rows, reference


def _differentiate(blocks, tensors):
    """Returns a dict of the results of blocks, by query. `_gradients` differentiates them.

    They are `"outputs"`, without the value table; with a value table, `"weights_by_id"`
    `[.., R - 1, C]` and, with dropout, `"total"`, the sums of the weights; and `"has_valid_key"`,
    if a query may be fully masked.

    Args:
        blocks: a `_OneBlock` or `_BlockLoops`.
        tensors: dict of `"query"`, `"key"`, `"value"` and, with a key table, `"scores_by_id"`
            `[.., R - 1, C]`, in the layout of the blocks.
    """
    names = []

    @tf.custom_gradient
    def run(*args):
        of_run = dict(zip(tensors, args))
        found = blocks.forward(_augmented_query(blocks, of_run), of_run["key"], of_run["value"])
        results, band = {"outputs": found["outputs"]}, found.get("band")
        if band is not None:
            results["weights_by_id"] = blocks.query_band.sum_by_id(found)
        results |= {name: found[name] for name in ("total", "has_valid_key") if name in found}
        names.extend(results)

        def gradient(*d_results):
            d_results = dict(zip(results, d_results))
            gradients = _gradients(blocks, of_run, results, band, d_results)
            pairs = [(gradients[name], x) for name, x in of_run.items()]
            return [tf.ensure_shape(tf.cast(y, x.dtype), x.shape) for y, x in pairs]

        return tuple(results.values()), gradient

    return dict(zip(names, run(*tensors.values())))


def _augmented_query(blocks, tensors):
    """Returns the queries with their scores by id, as `QueryBand.augment`."""
    return blocks.query_band.augment(tensors["query"], tensors.get("scores_by_id"))


def _gradients(blocks, tensors, results, band, d_results):
    """Returns a dict of the gradients of the tensors.

    `band` is that of the weights, or None without a value table.
    """
    arguments, by_query = blocks.arguments, {"query": tensors["query"]}
    d_outputs, d_by_id, d_total = map(d_results.get, ("outputs", "weights_by_id", "total"))
    row_sums = tf.reduce_sum(d_outputs * results["outputs"], -1, keepdims=True)
    if d_by_id is not None:
        row_sums += tf.reduce_sum(d_by_id * results["weights_by_id"], -2)[..., None]
    if d_total is not None:
        row_sums += d_total * results["total"]
    by_query["row_sums"] = row_sums
    by_query["d_outputs"] = d_outputs = tf.cast(d_outputs, arguments.query.dtype)
    # In 16 bits, the bias is added after the product: the rounding error of a column, the same for
    # all keys of a query, would not average out.
    in_column = blocks.adds_bias_in_column and d_outputs.dtype == row_sums.dtype
    bias = -row_sums if arguments.rate is None else d_total
    by_query |= blocks.query_band.augment(d_outputs, d_by_id, bias, in_column=in_column)
    if d_by_id is not None:
        by_query["diagonals"] *= band
    query = None if arguments.save_weights else _augmented_query(blocks, tensors)
    found, gradients = blocks.backward(by_query, query, tensors["key"], tensors["value"])
    gradients["query"] = found["d_query"]
    if "scores_by_id" in tensors:
        gradients["scores_by_id"] = blocks.query_band.sum_by_id(found)
    return gradients


class _OneBlock:
    """The complete score matrix as one block. Weights are saved before and after dropout.

    For sequences that may be shorter than the band, keys are padded so that every diagonal exists.

    Args:
        arguments: the `Arguments`.
        dtype: dtype of scores and weights.
    """

    adds_bias_in_column = True

    def __init__(self, arguments, dtype):
        length_q, length_k = arguments.lengths
        first = length_k - length_q
        self.arguments, self._length_k = arguments, length_k
        self._padding = left, right = _band_padding(arguments, first, first, length_q)
        self.query_band = QueryBand(arguments, first + left + tf.range(length_q), dtype)
        width = length_k + left + right
        band = Diagonals(self.query_band, first + left, length_q, width, sum_by_matmul=True)
        self._block = ScoreBlock(arguments, band, self._mask(arguments.masks))

    def _mask(self, masks):
        """Returns the mask with the padding of keys, or None."""
        if not masks and _is_zero(*self._padding):
            return None
        mask = masks[0] if masks else tf.ones([1, self._length_k], tf.bool)
        return _padded_keys(mask, self._length_k, *self._padding)

    split_queries = join_queries = split_table = staticmethod(lambda x: x)

    def split_keys(self, x):
        return _pad(x, *self._padding)

    def forward(self, query, key, value):
        """Returns the results of `ScoreBlock.forward`. `query` is a dict, as in its `weights`."""
        self._weights = self._block.weights(query, key)
        self._dropped = self._block.drop(self._weights)
        return self._block.forward(self._dropped, value)

    def backward(self, by_query, query, key, value):
        """Returns the results of `ScoreBlock.backward`. `query` is None: weights are saved."""
        return self._block.backward(self._weights, self._dropped, by_query, key, value)


class _BlockLoops:
    """Loops over groups of heads and blocks of queries.

    Queries are padded to whole blocks, and keys so that each block has every diagonal of its band.
    If causal, a block does not read keys after its last query. With a sliding window, it does not
    read keys outside of the windows of its queries.

    Shapes: queries `[groups, blocks, heads, C, X]`, keys `[groups, heads, padded keys, X]`, tables
    `[groups, 1, heads, R, H]`, or `[1, 1, 1, R, H]` for all heads. `heads` are those of a group.

    Args:
        arguments: the `Arguments`.
        dtype: dtype of scores and weights.
    """

    def __init__(self, arguments, dtype):
        self.arguments, self._dtype = arguments, dtype
        # Without a left tail, there are no other columns. Adding one to keys would copy them.
        self.adds_bias_in_column = not arguments.causal
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
            arguments, arguments.query_offset, last, self._block_size
        )
        self._width = self._left + self._length_k + self._right
        positions = self._first(tf.range(self._num_blocks))[:, None] + tf.range(self._block_size)
        self.query_band = QueryBand(arguments, positions[:, None], dtype)
        self._masks = [self._padded_mask(mask) for mask in arguments.masks]
        if not (self._masks or _is_zero(self._left, self._right)):
            self._masks = [self._padded_mask(tf.ones([1, self._length_k], tf.bool))]

    def _first(self, number):
        """Returns the position of a block's first query among padded keys."""
        return self.arguments.query_offset + self._left + number * self._block_size

    def _key_range(self, number):
        """Returns (first, end) of the padded keys that a block reads."""
        arguments = self.arguments
        if not arguments.causal and arguments.sliding_window is None:
            return 0, self._width
        # The block also reads the keys of its band.
        read = Distances(*map(max, masked_distances(arguments), arguments.diagonals))
        first, end = read.existing_keys(self._first(number), self._block_size, self._width)
        if not arguments.causal:
            first = first // arguments.chunk * arguments.chunk
        return first, end

    def split_queries(self, x):
        """Splits queries, `[B, N, T, X]` -> `[groups, blocks, heads, C, X]`."""
        x = self._pad_queries(self._group_heads(x))
        shape = [self._num_groups, self._heads, self._num_blocks, self._block_size, x.shape[3]]
        return tf.transpose(tf.reshape(x, tf.stack(shape)), [0, 2, 1, 3, 4])

    def join_queries(self, x):
        """Joins blocks of queries. It is the inverse of `split_queries`."""
        x = tf.transpose(x, [0, 2, 1, 3, 4])
        shape = [self._num_groups, self._heads, self._num_blocks * self._block_size, tf.shape(x)[4]]
        x = tf.reshape(x, tf.stack(shape))[:, :, : self._length_q]
        return tf.reshape(x, tf.concat([tf.shape(self.arguments.query)[:3], tf.shape(x)[3:]], 0))

    def split_keys(self, x):
        """Groups and pads keys, `[B, N, S, X]` -> `[groups, heads, padded keys, X]`."""
        return _pad(self._group_heads(x), self._left, self._right)

    def split_table(self, table):
        """Returns a table with the leading axes of queries."""
        if len(table.shape) == 2:
            return table[None, None, None]
        table = tf.reshape(table, tf.stack([-1, 1, self._heads, *table.shape[1:]]))
        return tf.tile(table, tf.stack([tf.shape(self.arguments.query)[0], 1, 1, 1, 1]))

    def _group_heads(self, x):
        """Groups the heads of `[B, N, X, H]` as `[groups, heads, X, H]`."""
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
        """Returns the mask of a block, which broadcasts to `[heads, C, keys]`, or None."""
        first_query, (first_key, end) = number * self._block_size, self._key_range(number)
        queries = self._first(number) + tf.range(self._block_size)[:, None]
        masks = masked_distances(self.arguments).masks(queries, tf.range(first_key, end))
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
        """Returns a `ScoreBlock` `[heads, C, keys that it reads]`."""
        first_key, end = self._key_range(number)
        first, size = self._first(number) - first_key, self._block_size
        band = Diagonals(self.query_band, first, size, end - first_key, first_key=first_key)
        return ScoreBlock(self.arguments, band, self._mask(group, number), index)

    def forward(self, query, key, value):
        """Returns a dict of the results of `ScoreBlock.forward` for all blocks."""
        query = _flatten(query)

        def one_block(block, index, group, keys):
            weights = block.weights(_at(query, index), key[group][:, keys])
            results = block.forward(block.drop(weights), value[group][:, keys])
            if "has_valid_key" in results:
                results["has_valid_key"] += tf.zeros_like(results["outputs"][..., :1])
            return results | {"weights": weights}, {}

        names = ["outputs"] + self._sum_names(self.arguments.value_table)
        names += ["total"] if self.arguments.has_total else []
        names += ["has_valid_key"] if self.arguments.may_be_fully_masked else []
        names += ["weights"] if self.arguments.save_weights else []
        results, _ = self._run(names, one_block, {})
        self._weights = results.pop("weights", None)
        return results

    def backward(self, by_query, query, key, value):
        """Returns the results of `ScoreBlock.backward` for all blocks. `query` may be None."""
        by_query, query = _flatten(by_query), _flatten(query or {})

        def one_block(block, index, group, keys):
            keys, values = key[group][:, keys], value[group][:, keys]
            if self._weights is None:
                weights = block.weights(_at(query, index), keys)
            else:
                weights = self._weights.read(index)
            weights = tf.ensure_shape(weights, [None, None, None])
            return block.backward(weights, block.drop(weights), _at(by_query, index), keys, values)

        names = ["d_query"] + self._sum_names(self.arguments.key_table)
        return self._run(names, one_block, {"key": key, "value": value})

    def _sum_names(self, table):
        """Returns the names of the results of `Diagonals.sums`, none without a table."""
        names = ["band"] if self.arguments.causal else ["band", "tail"]
        return [] if table is None else names

    def _run(self, names, one_block, keys):
        """Calls `one_block` for all blocks, one after the other.

        Args:
            names: names of the results by query.
            one_block: function of the `ScoreBlock`, its index among the blocks of all groups, the
                index of its group, and the slice of the keys that it reads. It returns (a dict of
                results by query, a dict of gradients of those keys).
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


def _band_padding(arguments, first, last, size):
    """Returns the keys to add (left, right), so that blocks have each diagonal of the band.

    `first` and `last` are key positions of the first query of the first and of the last block.
    """
    below, above = arguments.diagonals
    # The band of the first block ends after the first key, and no diagonal starts before it.
    left = _maximum(0, below - size - first, 1 - above - first)
    # The band of the last block ends at `last + above`. With `needed_keys` keys, the tail of its
    # last query ends at a key or, without a tail, one diagonal contains all queries of the block.
    tail = below - 1 if arguments.causal else arguments.distances.left + 1
    needed_keys = _maximum(last + above, last + size - tail, size - left)
    return left, _maximum(0, needed_keys - arguments.lengths[1])


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
