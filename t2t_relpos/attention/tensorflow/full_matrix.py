"""Full-matrix relative attention for TensorFlow on CPUs, with a custom gradient.

Run time is dominated by passes over the `[T, S]` score matrix. The gradient of softmax subtracts a
row sum from every entry; here it is computed from the outputs, so that the backward pass reads the
matrix once instead of four times.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from t2t_relpos._backend import accumulation_dtype
from t2t_relpos.attention.masks import MASKED_SCORE
from t2t_relpos.attention.tensorflow import ops
from t2t_relpos.attention.tensorflow.band import Band, BandShape, QueryBand
from t2t_relpos.attention.tensorflow.ops import as_seed, dropout_factors
from t2t_relpos.attention.tensorflow.relative_terms import DiagonalTerms, NoTerms


class _Call(NamedTuple):
    """Arguments of the shared function. `rate` and `seed` are None without dropout."""

    query: Any
    key: Any
    value: Any
    key_table: Any
    value_table: Any
    mask: Any
    is_masked: bool
    causal: bool
    chunk: Any
    rate: float | None
    seed: Any


@tf.autograph.experimental.do_not_convert
def attend(call, chunk):
    """Returns the outputs `[B, N, T, Hv]` of attention with an aligned query offset, `S - T`.

    Args:
        call: an `AttentionCall`.
        chunk: number of keys of a chunk of the left tail, an int or a scalar tensor.
    """
    mask = call.combined_mask()
    tensors = (call.query, call.key, call.value, call.key_table, call.value_table, mask)
    dropout = call.dropout
    arguments = _Call(
        *(x if x is None else tf.convert_to_tensor(x) for x in tensors),
        is_masked=call.key_mask is not None or call.mask is not None,
        causal=call.causal,
        chunk=chunk,
        rate=dropout.rate if dropout else None,
        seed=as_seed(dropout.seed) if dropout else None,
    )
    return _attend(arguments)


@ops.shared_function
def _attend(call):
    names = ["query", "key", "value", "key_table", "value_table"]
    names = [name for name in names if getattr(call, name) is not None]

    @tf.custom_gradient
    def run(*args):
        matrix = _FullMatrix(call._replace(**dict(zip(names, args))))

        def gradient(d_outputs):
            gradients = matrix.backward(d_outputs)
            return [tf.ensure_shape(x, y.shape) for x, y in zip(gradients, args, strict=True)]

        return matrix.forward(), gradient

    return run(*(getattr(call, name) for name in names))


class _FullMatrix:
    """One forward pass and its gradient."""

    def __init__(self, call):
        self._call = call
        self._dtype = call.query.dtype
        self._accumulation = tf.as_dtype(accumulation_dtype(self._dtype))
        self._key_terms, self._value_terms = self._relative_terms()
        # Fully masked queries: softmax is arbitrary, so zero the output and the incoming gradient.
        self._has_valid_key = (
            tf.cast(tf.reduce_any(call.mask, -1, keepdims=True), self._dtype)
            if call.is_masked
            else None
        )

    def _relative_terms(self):
        call = self._call
        lengths = [
            x.shape[2] if x.shape[2] is not None else tf.shape(x)[2] for x in (call.query, call.key)
        ]
        table = call.value_table if call.key_table is None else call.key_table
        k = table.shape[-2] // 2
        # A causal band with K = 1 has a single diagonal, which TensorFlow treats differently. The
        # bidirectional band has more; those of masked keys have no effect.
        shape = BandShape(k, causal=call.causal and k > 1, chunk=call.chunk)
        first = lengths[1] - lengths[0]
        queries = QueryBand(shape, first + tf.range(lengths[0]), self._dtype)
        band = Band(queries, first, *lengths)
        return [
            NoTerms() if table is None else DiagonalTerms(queries, band, table)
            for table in (call.key_table, call.value_table)
        ]

    def forward(self):
        """Returns the outputs."""
        call = self._call
        scores, diagonals = self._key_terms.matmul(call.query, call.key)
        scores, _ = self._key_terms.add_band(scores, diagonals)
        self._weights = self._dropped = self._softmax(scores)
        self._total = tf.ones([], self._dtype)
        if call.rate is not None:
            shape = tf.shape(self._weights)
            self._dropped *= dropout_factors(shape, call.rate, call.seed, self._dtype)
            self._total = tf.reduce_sum(self._dropped, -1, keepdims=True)
        self._band = self._value_terms.read_band(self._dropped)
        self._sums = self._value_terms.sum_by_id(self._dropped, self._band)
        outputs = tf.matmul(self._dropped, call.value)
        outputs = _sum(outputs, self._value_terms.values(self._sums, self._total))
        if self._has_valid_key is not None:
            outputs *= self._has_valid_key
        self._outputs = tf.ensure_shape(outputs, (*call.query.shape[:-1], call.value.shape[-1]))
        return self._outputs

    def _softmax(self, scores):
        scores = tf.cast(scores, self._accumulation)
        if self._call.mask is not None:
            scores = tf.where(self._call.mask, scores, tf.cast(MASKED_SCORE, scores.dtype))
        return tf.cast(tf.nn.softmax(scores), self._dtype)

    def backward(self, d_outputs):
        """Returns the gradients of query, key, value and the tables that are not None."""
        call = self._call
        if self._has_valid_key is not None:
            d_outputs *= self._has_valid_key
        d_scores, band = self._d_scores(d_outputs)
        d_sums = self._key_terms.sum_by_id(d_scores, band)
        d_query = _sum(tf.matmul(d_scores, call.key), self._key_terms.values(d_sums, None))
        d_key = tf.matmul(d_scores, call.query, transpose_a=True)
        d_value = tf.matmul(self._dropped, d_outputs, transpose_a=True)
        d_tables = (
            self._key_terms.gradient(d_sums, call.query, None),
            self._value_terms.gradient(self._sums, d_outputs, self._total),
        )
        return [d_query, d_key, d_value, *(x for x in d_tables if x is not None)]

    def _d_scores(self, d_outputs):
        """Returns (the gradient of the scores, its band or None)."""
        call = self._call
        wide_d_outputs = tf.cast(d_outputs, self._accumulation)
        row_sum = tf.reduce_sum(
            wide_d_outputs * tf.cast(self._outputs, self._accumulation), -1, keepdims=True
        )
        bias = self._value_terms.reference_scores(wide_d_outputs)
        if call.rate is None:
            bias = _sum(-row_sum, bias)
        # In 16 bits, the bias is added after the product: see `block_steps`.
        in_column = self._accumulation == self._dtype
        d_weights, diagonals = self._value_terms.matmul(
            d_outputs, call.value, bias if in_column else None
        )
        if not in_column:
            d_weights = _sum(tf.cast(d_weights, self._accumulation), bias)
        d_scores = d_weights * tf.cast(self._dropped, self._accumulation)
        if call.rate is not None:
            d_scores -= row_sum * tf.cast(self._weights, self._accumulation)
        d_scores = tf.cast(d_scores, self._dtype)
        # The band is added last, because `add_band` also returns the band that the sums need.
        weighted = None if diagonals is None else diagonals * self._band
        return self._value_terms.add_band(d_scores, weighted)


def _sum(x, y):
    """Returns `x + y`; None means 0."""
    return y if x is None else x if y is None else x + y
