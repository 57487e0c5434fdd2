"""Relative terms on TensorFlow: bands of diagonals, and columns for the clipped tail.

Tables are difference rows (see `band.difference_rows`). Two parts remain:

- the band: a few diagonals, read and written with diagonal ops;
- the left tail, if bidirectional: all keys of larger distances share id 0. Keys are grouped in
  chunks. Additional columns of queries and keys add the whole chunks of the tail in their product.
  The last chunk may be partly in the tail: it adds `chunk - 1` diagonals.

Shapes: C queries; L difference ids (left + right, or left if causal), from right to left; D
diagonals of the band.
"""

from typing import NamedTuple

import tensorflow as tf

from t2t_relpos.attention.band import Distances, difference_rows
from t2t_relpos.backend import accumulation_dtype


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


class BandShape(NamedTuple):
    """Describes which diagonals belong to the band.

    Args:
        distances: the `Distances` of the table, at least 1; to the left at least 2 if causal.
        causal: whether keys after a query are masked. Their scores are arbitrary.
        chunk: number of keys of a chunk of the left tail, at least 2, an int or a scalar tensor.
            Unused if causal.
    """

    distances: Distances
    causal: bool
    chunk: int

    @property
    def num_ids(self):
        """L, the number of difference ids."""
        return self.distances.left + (0 if self.causal else self.distances.right)

    @property
    def diagonals(self):
        """The `Distances` between which the diagonals are: also those of the last chunk's keys."""
        left, right = self.distances
        return Distances(left, 1) if self.causal else Distances(left + self.chunk, right)


class QueryBand:
    """Biases of queries `[.., C, H]`: by id `[.., L, C]` and by diagonal `[.., D, C]`.

    Args:
        shape: a `BandShape`.
        positions: int32 key positions of the queries, `[.., C]`, consecutive.
        dtype: dtype of the biases.
    """

    def __init__(self, shape, positions, dtype):
        self.shape, self.dtype = shape, dtype
        if shape.causal:
            return
        chunk = shape.chunk
        tail_length = positions - shape.distances.left
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

    def to_diagonals(self, by_id):
        """Converts biases `[.., L, C]` to `[.., D, C]`, without whole chunks of the tail."""
        if self.shape.causal:
            return by_id
        return tf.concat([by_id, by_id[..., -1:, :] * self._in_partial_chunk], -2)

    def append_query_columns(self, x, by_id, bias=None):
        """Appends the tail's columns, plus `bias` `[.., C, 1]` for all keys, to `[.., C, H]`."""
        if not self.shape.causal:
            tail = by_id[..., -1, :, None] * self._tail_columns
            bias = tail if bias is None else tail + bias
        return x if bias is None else tf.concat([x, tf.cast(bias, x.dtype)], -1)

    def sum_by_id(self, diagonals, tail=None):
        """Returns sums by id `[.., L, C]`, from diagonals and the tail's sums `[.., 1, C]`.

        It is the transpose of `to_diagonals` and `append_query_columns`.
        """
        if self.shape.causal:
            return diagonals
        sizes = [self.shape.num_ids - 1, 1, self.shape.chunk - 1]
        unclipped, last, partial = tf.split(diagonals, sizes, -2)
        partial = tf.reduce_sum(partial * self._in_partial_chunk, -2, keepdims=True)
        return tf.concat([unclipped, last + tail + partial], -2)


class Band:
    """The band of a score matrix `[.., C, S]`.

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
        shape = queries.shape
        lowest, end = shape.diagonals.band_keys(first, 1)
        self._diagonals = lowest, end - 1
        self._causal = shape.causal
        if shape.causal:
            self._columns = tf.ones([length_k, 1], queries.dtype)
            return
        chunk = self._chunk = shape.chunk
        tail_length = first_key + first - shape.distances.left
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
        """Appends the columns that multiply those of `QueryBand.append_query_columns`."""
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
        """Returns the band `[.., D, C]`."""
        return tf.linalg.diag_part(scores, k=self._diagonals, align=_ALIGN)

    def sums(self, weights, band=None):
        """Returns a dict of the band and, if bidirectional, the sums of the whole chunks.

        They are `"band"` `[.., D, C]` and `"tail"` `[.., 1, C]`, for `QueryBand.sum_by_id`.

        Args:
            weights: `[.., C, S]`.
            band: the band, if it is known.
        """
        band = self._read(weights) if band is None else band
        return {"band": band} if self._causal else {"band": band, "tail": self._sum_tail(weights)}

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


class TableTerms:
    """The relative terms of one table. Without a table, they are None.

    Args:
        queries: the `QueryBand` of all queries.
        table: `[.., R, H]`, broadcasts to the queries, or None.
        dtype: dtype in which matrices are multiplied.
    """

    def __init__(self, queries, table, dtype):
        self._queries, self._dtype, self._rows = queries, dtype, None
        self._causal = queries.shape.causal
        if table is not None:
            distances = queries.shape.distances
            rows, self._reference = difference_rows(table, distances, causal=self._causal)
            # The order of the diagonals is from right to left.
            self._rows = rows[..., ::-1, :]

    def augment(self, x, bias=None, *, in_column=False):
        """Returns a dict of the tensors by query from which a block computes `x·yᵀ` with terms.

        They are `"plain"`, `x` itself, or `"augmented"`, `x` with columns; `"diagonals"`
        `[.., D, C]`, to be added to the band; and `"bias"`, to be added to the product.

        Args:
            x: `[.., C, H]`, queries or gradients of outputs.
            bias: `[.., C, 1]`, to be added for all keys, or None.
            in_column: whether a column adds the bias in the product.
        """
        terms = {}
        if self._rows is not None:
            by_id = matmul(self._rows, x, self._dtype, transpose_b=True)
            terms["diagonals"] = self._queries.to_diagonals(by_id)
            column = bias if in_column else None
            if column is not None or not self._causal:
                terms["augmented"] = self._queries.append_query_columns(x, by_id, column)
            bias = None if in_column else bias
        if "augmented" not in terms:
            terms["plain"] = x
        return terms if bias is None else terms | {"bias": bias}

    def reference_scores(self, x):
        """Returns the products of `x` with the reference row, `[.., C, 1]`, or None."""
        if self._rows is None:
            return None
        # Not a matmul with one column: see `backend.matmul_matrix`.
        return tf.reduce_sum(x * self._reference, -1, keepdims=True)

    def sum_by_id(self, results):
        """Returns sums by difference id `[.., L, C]` of the results of `Band.sums`, or None."""
        if self._rows is None:
            return None
        return self._queries.sum_by_id(results["band"], results.get("tail"))

    def add_values(self, outputs, sums, total=None):
        """Returns outputs `[.., C, H]` plus the values of the table.

        Args:
            outputs: `[.., C, H]`.
            sums: from `sum_by_id`.
            total: sums of each query's weights `[.., C, 1]`. None leaves out the reference row.
        """
        if self._rows is None:
            return outputs
        outputs += matmul(sums, self._rows, self._dtype, transpose_a=True)
        return outputs if total is None else outputs + total * self._reference

    def gradient(self, sums, x, total=None):
        """Returns the gradient of the table, or None.

        Args:
            sums: from `sum_by_id`.
            x: `[.., C, H]`, the other factor of the product.
            total: as in `add_values`.
        """
        if self._rows is None:
            return None
        rank = len(x.shape)
        d_rows = self._sum_to_table(matmul(sums, x, self._dtype), rank)
        d_reference = -tf.reduce_sum(d_rows, -2, keepdims=True)
        if total is not None:
            by_query = total * tf.cast(x, d_rows.dtype)
            d_reference += self._sum_to_table(tf.reduce_sum(by_query, -2, keepdims=True), rank)
        rows = d_rows[..., ::-1, :]
        if not self._causal:
            return tf.concat([rows, d_reference], -2)
        later_keys = self._queries.shape.distances.right
        shape = tf.shape(rows)
        zeros = tf.zeros(tf.concat([shape[:-2], [later_keys], shape[-1:]], 0), rows.dtype)
        return tf.concat([d_reference, rows, zeros], -2)

    def _sum_to_table(self, x, rank):
        """Sums `[.., rows, H]` of a rank over the axes along which the table is broadcast."""
        shape = self._rows.shape
        missing = rank - len(shape)
        if missing:
            return tf.reduce_sum(x, list(range(missing)))
        ones = [axis for axis, size in enumerate(shape[:-2]) if size == 1]
        return tf.reduce_sum(x, ones, keepdims=True)
