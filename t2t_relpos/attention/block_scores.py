"""Scores, masks and relative terms of one block of queries, in keras.ops.

Shapes: C queries of a block; L ids without the reference row (2K, or K if causal).
"""

import dataclasses
import functools
from typing import Any, NamedTuple

from keras import ops

from t2t_relpos._backend import accumulation_dtype
from t2t_relpos.attention.skew import expand_ids, sum_by_id
from t2t_relpos.attention.block_layout import KeyWindow, Segment
from t2t_relpos.attention.dropout import SeededDropout
from t2t_relpos.attention.masks import MASKED_SCORE
from t2t_relpos.attention.gather import matmul_table


class Tensors(NamedTuple):
    """All tensors of a call, None for absent ones.

    `key_differences` and `value_differences` are the table rows minus the reference row,
    `[L, H]` or `[N, L, H]`.
    """

    query: Any
    key: Any
    value: Any
    key_differences: Any = None
    value_differences: Any = None
    key_mask: Any = None
    mask: Any = None
    query_offset: Any = None
    seed: Any = None


@dataclasses.dataclass(frozen=True)
class Settings:
    """Python constants of a call.

    Args:
        max_relative_position: K, at least 1.
        causal: whether keys after a query are masked.
        query_offset: key position of query 0 if it is an int, else None.
        needs_totals: whether the weights of a query may have a sum other than 1.
        dropout_rate: dropout rate, or None.
        save_weights: whether weights are saved for the gradient.
        segments: the `Segment`s of the queries.
        dtype: dtype in which matrices are multiplied.
    """

    max_relative_position: int
    causal: bool
    query_offset: int | None
    needs_totals: bool
    dropout_rate: float | None
    save_weights: bool
    segments: tuple[Segment, ...]
    dtype: str


class Block:
    """One block of queries: its scores, masks and relative terms.

    Args:
        settings: the `Settings`.
        segment: the `Segment`.
        number: number of the block in the segment, an int or a scalar tensor.
        query_offset: key position of query 0, an int or a scalar tensor.
    """

    def __init__(self, settings, segment, number, query_offset):
        self._settings, self.segment = settings, segment
        self.start = number * segment.block
        self._number = segment.number + number
        self._first_position = query_offset + segment.start + self.start
        first_position_range = None
        if isinstance(query_offset, int) and isinstance(segment.count, int):
            smallest = query_offset + segment.start
            first_position_range = smallest, smallest + (segment.count - 1) * segment.block
        self._window = KeyWindow.of(
            self._first_position,
            segment,
            settings.max_relative_position,
            causal=settings.causal,
            first_position_range=first_position_range,
        )

    def add_bias(self, scores, by_id):
        """Returns scores `[B, N, C, S]` plus biases by id `[B, N, C, L]`."""
        window, num_keys = self._window, self.segment.num_keys
        if not (isinstance(window.width, int) and window.width == 0):
            bias = expand_ids(
                self._with_reference(by_id), window.width, window.offset, window.offset_range
            )
            scores = scores + window.pad_to_keys(bias, num_keys)
        if self._settings.causal or (isinstance(window.start, int) and window.start == 0):
            return scores
        return scores + ops.where(self._in_left_tail(), by_id[..., :1], 0)

    def sum_by_id(self, weights):
        """Returns the sums of weights `[B, N, C, S]` by relative id, `[B, N, C, L]`.

        It is the transpose of the linear map in `add_bias`.
        """
        window, k = self._window, self._settings.max_relative_position
        if isinstance(window.width, int) and window.width == 0:
            ids = k if self._settings.causal else 2 * k
            sums = ops.repeat(ops.zeros_like(weights[..., :1]), ids, axis=-1)
        else:
            sums = sum_by_id(
                window.slice_keys(weights), 2 * k + 1, window.offset, window.offset_range
            )
            sums = sums[..., 1 : k + 1] if self._settings.causal else sums[..., : 2 * k]
        if self._settings.causal or (isinstance(window.start, int) and window.start == 0):
            return sums
        if isinstance(window.start, int):
            tail = ops.sum(weights[..., : window.start], axis=-1, keepdims=True)
        else:
            tail = ops.sum(ops.where(self._in_left_tail(), weights, 0), axis=-1, keepdims=True)
        return ops.concatenate([sums[..., :1] + tail, sums[..., 1:]], axis=-1)

    def _with_reference(self, by_id):
        """Returns a column for each of the 2K + 1 ids.

        The reference id gets 0. If causal, the ids of later keys get 0 too: they are masked.
        """
        if not self._settings.causal:
            return ops.concatenate([by_id, ops.zeros_like(by_id[..., :1])], axis=-1)
        return ops.concatenate([ops.zeros_like(by_id[..., :1]), by_id, ops.zeros_like(by_id)], -1)

    def _in_left_tail(self):
        return ops.arange(self.segment.num_keys, dtype="int32") < self._window.start

    def apply_masks(self, scores, key_mask, pair_mask):
        """Returns the scores `[B, N, C, S]` with masked entries set to a large negative number."""
        masks = []
        if self._settings.causal:
            queries = self._first_position + ops.arange(self.segment.block, dtype="int32")
            keys = ops.arange(self.segment.num_keys, dtype="int32")
            masks.append(keys <= queries[:, None])
        if key_mask is not None:
            masks.append(self.segment.keys(key_mask[:, None, None], axis=3))
        if pair_mask is not None:
            mask = pair_mask if pair_mask.shape[2] == 1 else self.queries(pair_mask)
            masks.append(mask if mask.shape[3] == 1 else self.segment.keys(mask, axis=3))
        if not masks:
            return scores
        is_valid_key = functools.reduce(ops.logical_and, masks)
        return ops.where(is_valid_key, scores, ops.cast(MASKED_SCORE, scores.dtype))

    def queries(self, x):
        """Returns the queries of this block, of a tensor with the segment's queries."""
        return self.segment.block_queries(x, self.start)

    def dropout_factors(self, weights, seed):
        """Returns the dropout factors of weights `[B, N, C, S]`. Repeated calls return the same."""
        dropout = SeededDropout(self._settings.dropout_rate, seed)
        return dropout.factors(ops.shape(weights), weights.dtype, self._number)


class SegmentScores:
    """The scores of a segment's blocks.

    Args:
        tensors: the `Tensors`.
        settings: the `Settings`.
        segment: the `Segment`.
        by_id: products of all queries with the differences of the key table, or None.

    Attributes:
        query: the segment's queries, `[B, N, blocks * C, H]`.
        key: keys that the segment reads, `[B, N, keys, H]`.
        value: values that the segment reads, `[B, N, keys, Hv]`.
    """

    def __init__(self, tensors, settings, segment, by_id):
        self.tensors, self.settings, self.segment = tensors, settings, segment
        self._query_offset = settings.query_offset
        if self._query_offset is None:
            self._query_offset = tensors.query_offset
        self.query = segment.queries(tensors.query)
        self.key, self.value = segment.keys(tensors.key), segment.keys(tensors.value)
        self._by_id = None if by_id is None else segment.queries(by_id)
        self._mask = tensors.mask
        if self._mask is not None and self._mask.shape[2] != 1:
            self._mask = segment.queries(self._mask)

    def block(self, number):
        """Returns the `Block` with this number in the segment."""
        return Block(self.settings, self.segment, number, self._query_offset)

    def scores(self, block):
        """Returns the masked scores of a block `[B, N, C, S]`."""
        scores = matmul(block.queries(self.query), transpose(self.key), self.settings)
        if self._by_id is not None:
            scores = block.add_bias(scores, block.queries(self._by_id))
        return block.apply_masks(scores, self.tensors.key_mask, self._mask)


def softmax(scores):
    """Returns (weights, log-sum-exp of the scores, sum of the weights).

    The sum is 1, or 0 for fully masked queries, whose weights are 0.
    """
    # On PyTorch, `ops.max` of an empty tensor raises an error without `initial`.
    largest = ops.max(scores, axis=-1, keepdims=True, initial=MASKED_SCORE)
    exponentials = ops.exp(scores - largest)
    total = ops.sum(exponentials, axis=-1, keepdims=True)
    has_valid_key = largest > MASKED_SCORE / 10
    # +2**100, so that rematerialized weights exp(score - log_sum) are 0.
    log_sums = ops.where(
        has_valid_key, largest + ops.log(total), ops.cast(-MASKED_SCORE, scores.dtype)
    )
    has_valid_key = ops.cast(has_valid_key, scores.dtype)
    return exponentials * (has_valid_key / total), log_sums, has_valid_key


def matmul(x, y, settings):
    """Returns `x @ y`, multiplied in the input dtype and cast to the accumulation dtype."""
    product = ops.matmul(ops.cast(x, settings.dtype), ops.cast(y, settings.dtype))
    return ops.cast(product, accumulation_dtype(settings.dtype))


def matmul_differences(x, table, settings, *, transpose_table=False):
    """Returns the product of x `[B, N, T, L or H]` and a table, with the dtypes of `matmul`."""
    x, table = ops.cast(x, settings.dtype), ops.cast(table, settings.dtype)
    product = matmul_table(x, table, transpose_table=transpose_table)
    return ops.cast(product, accumulation_dtype(settings.dtype))


def products_with_differences(x, differences, settings):
    """Returns the products of `[B, N, T, H]` with all differences, `[B, N, T, L]`, or None."""
    if differences is None:
        return None
    return matmul_differences(x, differences, settings, transpose_table=True)


def transpose(x):
    """Swaps the last two axes."""
    return ops.swapaxes(x, -1, -2)
