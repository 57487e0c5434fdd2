"""A block of the score matrix on TensorFlow: bands of diagonals, and columns for the clipped tail.

Biases and sums are by id of difference rows (see `band`). The band is read and written with
diagonal ops. In the left tail, if bidirectional, keys are grouped in chunks. Additional columns of
queries and keys add the whole chunks of the tail in their product. The last chunk may be partly in
the tail: it adds `chunk - 1` diagonals.

Shapes: C queries; R - 1 ids without that of the reference row, from right to left; `diagonals` of
the band.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from t2t_relpos.backend import MASKED_SCORE, accumulation_dtype, dropout_factors


def matmul(x, y, dtype, **options):
    """Returns `x @ y`, multiplied in `dtype` and cast to the accumulation dtype.

    Args:
        x: a tensor.
        y: a tensor.
        dtype: dtype of the multiplication.
        **options: options of tf.matmul.
    """
    product = tf.matmul(tf.cast(x, dtype), tf.cast(y, dtype), **options)
    return tf.cast(product, accumulation_dtype(dtype))


class QueryBand:
    """Biases of queries `[.., C, H]`: by id `[.., R - 1, C]`, by diagonal `[.., diagonals, C]`.

    Args:
        band: the `Arguments` of `engine`, which say where the band lies.
        positions: int32 key positions of the queries, `[.., C]`, consecutive.
        dtype: dtype of the biases.
    """

    def __init__(self, band, positions, dtype):
        self.band, self.dtype = band, dtype
        if band.causal:
            return
        chunk = band.chunk
        tail_length = positions - band.distances.left
        self._in_partial_chunk = tf.cast(
            tf.range(1, chunk)[:, None] <= (tail_length % chunk)[..., None, :], dtype
        )
        chunks = tail_length // chunk
        first = _first_column(tail_length[..., :1], chunk)
        # The last column belongs to keys that are in no query's tail.
        self.num_columns = tf.maximum(tf.reduce_max(chunks[..., -1:] - first) + 1, 1)
        self._tail_columns = tf.cast(
            tf.range(self.num_columns) < (chunks - first)[..., None], dtype
        )

    def augment(self, x, by_id=None, bias=None, *, in_column=False):
        """Returns a dict of the tensors by query from which a block computes `x·yᵀ` with biases.

        They are `"plain"`, `x` itself, or `"augmented"`, `x` with columns; `"diagonals"`
        `[.., diagonals, C]`, to be added to the band; and `"bias"`, to be added to the product.

        Args:
            x: `[.., C, H]`, queries or gradients of outputs.
            by_id: biases by id `[.., R - 1, C]`, or None.
            bias: `[.., C, 1]`, to be added for all keys, or None.
            in_column: whether a column adds the bias in the product, if there are biases by id.
        """
        terms, columns = {}, None
        if by_id is not None:
            terms["diagonals"] = self._to_diagonals(by_id)
            if not self.band.causal:
                columns = by_id[..., -1, :, None] * self._tail_columns
            if in_column and bias is not None:
                columns, bias = bias if columns is None else columns + bias, None
        if columns is None:
            terms["plain"] = x
        else:
            terms["augmented"] = tf.concat([x, tf.cast(columns, x.dtype)], -1)
        return terms if bias is None else terms | {"bias": bias}

    def _to_diagonals(self, by_id):
        """Converts biases by id to `[.., diagonals, C]`, without whole chunks of the tail."""
        if self.band.causal:
            return by_id
        return tf.concat([by_id, by_id[..., -1:, :] * self._in_partial_chunk], -2)

    def sum_by_id(self, results):
        """Returns sums by id `[.., R - 1, C]` of the results of `Diagonals.sums`.

        It is the transpose of the biases of `augment`.
        """
        diagonals = results["band"]
        if self.band.causal:
            return diagonals
        sizes = [sum(self.band.distances) - 1, 1, self.band.chunk - 1]
        unclipped, last, partial = tf.split(diagonals, sizes, -2)
        partial = tf.reduce_sum(partial * self._in_partial_chunk, -2, keepdims=True)
        return tf.concat([unclipped, last + results["tail"] + partial], -2)


class Diagonals:
    """The diagonals of the band, and the left tail, of a score matrix `[.., C, S]`.

    Args:
        queries: the `QueryBand` of its queries.
        first: position of query 0 among the keys, an int or a scalar tensor. Every diagonal must
            exist, and one must contain all queries. If bidirectional, the tail of the last query
            must not end after the last key.
        length_q: C, an int or a scalar tensor.
        length_k: S, an int or a scalar tensor.
        first_key: number of keys that were left out before these, a multiple of the chunk if
            bidirectional.
        sum_by_matmul: whether to sum the tail by a product if keys remain after the last whole
            chunk. With few chunks, this is faster than slicing off the remaining keys.
    """

    def __init__(self, queries, first, length_q, length_k, *, first_key=0, sum_by_matmul=False):
        band = queries.band
        lowest, end = band.diagonals.keys_between(first, 1)
        self._diagonals = lowest, end - 1
        self._has_left_tail = not band.causal
        if band.causal:
            self._columns = tf.ones([length_k, 1], queries.dtype)
            return
        chunk = self._chunk = band.chunk
        tail_length = first_key + first - band.distances.left
        self._chunk_of_key = tf.range(length_k) // chunk
        first_chunk = first_key // chunk
        first_column = _first_column(tail_length, chunk) - first_chunk
        column = tf.clip_by_value(self._chunk_of_key - first_column, 0, queries.num_columns - 1)
        self._columns = tf.one_hot(column, queries.num_columns, dtype=queries.dtype)
        self._num_chunks = length_k // chunk
        has_only_whole_chunks = (
            isinstance(length_k, int) and isinstance(chunk, int) and length_k % chunk == 0
        )
        self._sum_by_matmul = sum_by_matmul and not has_only_whole_chunks
        whole = (tail_length + tf.range(length_q)) // chunk - first_chunk
        self._chunk_is_in_tail = tf.cast(tf.range(self._num_chunks) < whole[:, None], queries.dtype)

    def append_key_columns(self, keys):
        """Appends the columns that multiply those of `QueryBand.augment`."""
        columns = tf.cast(self._columns, keys.dtype)
        shape = tf.concat([tf.shape(keys)[:-1], tf.shape(columns)[1:]], 0)
        return tf.concat([keys, tf.broadcast_to(columns, shape)], -1)

    def add(self, scores, diagonals):
        """Adds diagonals to the scores. Returns (scores, band after the addition)."""
        diagonals += self._read(scores)
        # With a partly known shape, shape inference of set_diag assumes a single diagonal.
        known = scores.shape.is_fully_defined()
        written = diagonals if known else tf.compat.v1.placeholder_with_default(diagonals, None)
        return tf.linalg.set_diag(scores, written, k=self._diagonals, align=_ALIGN), diagonals

    def _read(self, scores):
        """Returns the band `[.., diagonals, C]`."""
        return tf.linalg.diag_part(scores, k=self._diagonals, align=_ALIGN)

    def sums(self, weights, band=None):
        """Returns a dict of the band and, if bidirectional, the sums of the whole chunks.

        They are `"band"` `[.., diagonals, C]` and `"tail"` `[.., 1, C]`, for `QueryBand.sum_by_id`.

        Args:
            weights: `[.., C, S]`.
            band: the band, if it is known.
        """
        band = self._read(weights) if band is None else band
        return {"band": band} | ({"tail": self._sum_tail(weights)} if self._has_left_tail else {})

    def _sum_tail(self, weights):
        """Sums the whole chunks of each query's tail: `[.., 1, C]`."""
        shape = tf.shape(weights)
        if self._sum_by_matmul:
            one_hot = tf.one_hot(self._chunk_of_key, self._num_chunks, dtype=weights.dtype)
            # In rank 2: see `backend.matmul_matrix`.
            sums = tf.matmul(tf.reshape(weights, [-1, shape[-1]]), one_hot)
            sums = tf.reshape(sums, tf.concat([shape[:-1], [self._num_chunks]], 0))
        else:
            weights = weights[..., : self._num_chunks * self._chunk]
            shape = tf.concat([shape[:-1], [self._num_chunks, self._chunk]], 0)
            sums = tf.reduce_sum(tf.reshape(weights, shape), -1)
        return tf.reduce_sum(sums * self._chunk_is_in_tail, -1)[..., None, :]


# With this alignment, all entries of a query are in one column.
_ALIGN = "LEFT_RIGHT"


def _first_column(tail_length, chunk):
    """Returns the number of the first chunk with a separate column.

    Earlier chunks are in the tail of every query and share the first column.
    """
    return tf.maximum(tail_length // chunk - 1, 0)


class ScoreBlock(NamedTuple):
    """A block of the score matrix, `[.., C, S]`, with any leading axes.

    Scores, weights and sums have the accumulation dtype.

    Run time is dominated by passes over the scores. The gradient of softmax subtracts a row sum
    from every entry; `by_query` has it, computed from the outputs, so that the backward pass reads
    the matrix once instead of four times.

    Args:
        arguments: the `Arguments` of `engine`.
        band: the `Diagonals` of the block.
        mask: bool, broadcasts to the block, or None. True = attend.
        index: index among all blocks, for the dropout factors. Default: None, a single block.
    """

    arguments: Any
    band: Diagonals
    mask: Any
    index: Any = None

    def weights(self, query, key):
        """Returns the weights before dropout `[.., C, S]`.

        `query` is a dict, the queries as `QueryBand.augment` returns them.
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
            tf.shape(weights), rate, self.arguments.seed, weights.dtype, self.index
        )

    def forward(self, dropped, value):
        """Returns a dict of results by query, `[.., C, X]` or, of the band, `[.., X, C]`.

        They are `"outputs"` without the value table; with a value table, those of `Diagonals.sums`
        and, with dropout, `"total"`, the sum of the weights after dropout; and, if a query may be
        fully masked, `"has_valid_key"`, 0 or 1. `dropped` are the weights after dropout.
        """
        results = {"outputs": matmul(dropped, value, self.arguments.query.dtype)}
        if self.arguments.value_table is not None:
            results |= self.band.sums(dropped)
        if self.arguments.has_total:
            results["total"] = tf.reduce_sum(dropped, -1, keepdims=True)
        if self.arguments.may_be_fully_masked:
            has_valid_key = tf.reduce_any(self.mask, -1, keepdims=True)
            results["has_valid_key"] = tf.cast(has_valid_key, dropped.dtype)
        return results

    def backward(self, weights, dropped, by_query, key, value):
        """Returns (a dict of results by query as in `forward`, a dict of gradients of the keys).

        The first has `"d_query"`, without the key table, and, with a key table, those of
        `Diagonals.sums`. The second has `"key"` and `"value"`. `by_query` has gradients of the
        outputs, as `_gradients` of `engine` makes it.
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
