"""Adds biases by relative id to scores, and sums weights by relative id, on TensorFlow.

A relative position is a diagonal of the score matrix. Table rows are stored as differences from a
reference row: the rightmost row, or the leftmost row if causal. Softmax ignores the reference, and
values add it once per query. Two parts remain:

- the band: a few diagonals, read and written with diagonal ops;
- the left tail, if bidirectional: all keys more than K positions before a query share id 0. Keys
  are grouped in chunks. Additional columns of queries and keys add the whole chunks of the tail in
  their product. The last chunk may be partly in the tail: it adds `chunk - 1` diagonals.

Shapes: L difference ids (2K, or K if causal), from right to left; D diagonals of the band.
"""

from typing import NamedTuple

import tensorflow as tf

from t2t_relpos.attention.blockwise import difference_rows
from t2t_relpos.attention.gather import matmul_table


class BandShape(NamedTuple):
    """Describes which diagonals belong to the band.

    Args:
        max_relative_position: K, at least 1, or 2 if causal.
        causal: whether keys after a query are masked. Their scores are arbitrary.
        chunk: number of keys of a chunk of the left tail, at least 2, an int or a scalar tensor.
            Unused if causal.
    """

    max_relative_position: int
    causal: bool
    chunk: int

    @property
    def num_ids(self):
        """L, the number of difference ids."""
        return self.max_relative_position * (1 if self.causal else 2)

    @property
    def num_diagonals(self):
        """(diagonals of distances <= 0, diagonals of distances >= 0). Distance 0 is in both."""
        k = self.max_relative_position
        return (k, 1) if self.causal else (k + self.chunk, k)


class QueryBand:
    """Biases of queries `[.., T, H]`: by id `[.., L, T]` and by diagonal `[.., D, T]`.

    Args:
        shape: a `BandShape`.
        positions: int32 key positions of the queries, `[.., T]`, consecutive.
        dtype: dtype of the biases.
    """

    def __init__(self, shape, positions, dtype):
        self.shape, self.dtype = shape, dtype
        if shape.causal:
            return
        chunk = shape.chunk
        tail_length = positions - shape.max_relative_position
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
        """Converts biases `[.., L, T]` to `[.., D, T]`, without whole chunks of the tail."""
        if self.shape.causal:
            return by_id
        return tf.concat([by_id, by_id[..., -1:, :] * self._in_partial_chunk], -2)

    def append_query_columns(self, x, by_id, bias=None):
        """Appends the tail's columns, plus `bias` `[.., T, 1]` for all keys, to `[.., T, H]`."""
        if not self.shape.causal:
            tail = by_id[..., -1, :, None] * self._tail_columns
            bias = tail if bias is None else tail + bias
        return x if bias is None else tf.concat([x, tf.cast(bias, x.dtype)], -1)

    def sum_by_id(self, diagonals, tail=None):
        """Returns sums by id `[.., L, T]`, from diagonals and the tail's sums `[.., 1, T]`.

        It is the transpose of `to_diagonals` and `append_query_columns`.
        """
        if self.shape.causal:
            return diagonals
        sizes = [self.shape.num_ids - 1, 1, self.shape.chunk - 1]
        unclipped, last, partial = tf.split(diagonals, sizes, -2)
        partial = tf.reduce_sum(partial * self._in_partial_chunk, -2, keepdims=True)
        return tf.concat([unclipped, last + tail + partial], -2)


class Band:
    """The band of a score matrix `[.., T, S]`.

    Args:
        queries: the `QueryBand` of its queries.
        first: key position of query 0, an int or a scalar tensor. Every diagonal must exist, and
            one must contain all queries. If bidirectional, the tail of the last query must not end
            after the last key.
        length_q: T, an int or a scalar tensor.
        length_k: S, an int or a scalar tensor.
    """

    def __init__(self, queries, first, length_q, length_k):
        shape = queries.shape
        left, right = shape.num_diagonals
        self._diagonals = first - left + 1, first + right - 1
        if shape.causal:
            self._columns = tf.ones([length_k, 1], queries.dtype)
            return
        chunk = self._chunk = shape.chunk
        tail_length = first - shape.max_relative_position
        self._chunk_of_key = tf.range(length_k) // chunk
        column = tf.clip_by_value(
            self._chunk_of_key - _first_column(tail_length, chunk), 0, queries.num_columns - 1
        )
        self._columns = tf.one_hot(column, queries.num_columns, dtype=queries.dtype)
        self._num_chunks = length_k // chunk
        self._has_only_whole_chunks = (
            isinstance(length_k, int) and isinstance(chunk, int) and length_k % chunk == 0
        )
        whole = (tail_length + tf.range(length_q)) // chunk
        self._chunk_is_in_tail = tf.cast(tf.range(self._num_chunks) < whole[:, None], queries.dtype)

    def append_key_columns(self, keys):
        """Appends the columns that multiply those of `QueryBand.append_query_columns`."""
        columns = tf.cast(self._columns, keys.dtype)
        shape = tf.concat([tf.shape(keys)[:-1], tf.shape(columns)[1:]], 0)
        return tf.concat([keys, tf.broadcast_to(columns, shape)], -1)

    def add(self, scores, diagonals):
        """Adds diagonals to the scores. Returns (scores, band after the addition)."""
        diagonals += self.read(scores)
        # With a partly known shape, shape inference of set_diag assumes a single diagonal.
        known = scores.shape.is_fully_defined()
        written = diagonals if known else tf.compat.v1.placeholder_with_default(diagonals, None)
        return tf.linalg.set_diag(scores, written, k=self._diagonals, align=_ALIGN), diagonals

    def read(self, scores):
        """Returns the band `[.., D, T]`."""
        return tf.linalg.diag_part(scores, k=self._diagonals, align=_ALIGN)

    def sum_tail(self, weights, *, prefer_matmul=False):
        """Sums the whole chunks of each query's tail: `[.., 1, T]`.

        Args:
            weights: `[.., T, S]`, of rank 4 for `prefer_matmul`.
            prefer_matmul: whether to sum by a product if keys remain after the last whole chunk.
                With few chunks, this is faster than slicing off the remaining keys.
        """
        if prefer_matmul and not self._has_only_whole_chunks:
            one_hot = tf.one_hot(self._chunk_of_key, self._num_chunks, dtype=weights.dtype)
            sums = matmul_table(weights, one_hot)
        else:
            weights = weights[..., : self._num_chunks * self._chunk]
            shape = tf.concat([tf.shape(weights)[:-1], [self._num_chunks, self._chunk]], 0)
            sums = tf.reduce_sum(tf.reshape(weights, shape), -1)
        return tf.reduce_sum(sums * self._chunk_is_in_tail, -1)[..., None, :]


# With this alignment, all entries of a query are in one column.
_ALIGN = "LEFT_RIGHT"


def _first_column(tail_length, chunk):
    """Returns the number of the first chunk with a separate column.

    Earlier chunks are in the tail of every query and share the first column.
    """
    return tf.maximum(tail_length // chunk - 1, 0)


def diagonal_rows(table, *, causal):
    """Returns (difference rows in the order of the diagonals, from right to left; reference row)."""
    rows, reference = difference_rows(table, causal=causal)
    return rows[..., ::-1, :], reference


def table_gradient(d_rows, d_reference, *, causal):
    """Returns the gradient of a table from those of its difference rows and reference row.

    It is the transpose of `diagonal_rows`.
    """
    d_reference -= tf.reduce_sum(d_rows, -2, keepdims=True)
    rows = d_rows[..., ::-1, :]
    parts = [d_reference, rows, tf.zeros_like(rows)] if causal else [rows, d_reference]
    return tf.concat(parts, -2)
