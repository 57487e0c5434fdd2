"""Exact relative attention by blocks of queries, in keras.ops, with a custom gradient.

For XLA, accelerators, JAX and PyTorch. Softmax ignores a term that is equal for all keys of a
query. Table rows are therefore stored as differences from a reference row: the rightmost one, or
the leftmost one if causal. Values add the reference row once per query. Two parts remain:

- the band: keys at distances from -(K - 1) to K - 1 (to 0 if causal). For a block of queries they
  are in a window of consecutive keys, which `band.expand_ids` and `band.sum_by_id` handle;
- the left tail, if bidirectional: all keys before the window share relative id 0.

Two forms: the unrolled form has a static slice of keys for every block and saves the weights. The
scanned form loops over the blocks and rematerializes the weights: memory is linear in length.

Shapes: C queries of a block; L ids without the reference row (2K, or K if causal).
"""

import dataclasses
from typing import Any, NamedTuple

import keras
from keras import ops

from t2t_relpos import _backend
from t2t_relpos.attention.band import expand_ids, sum_by_id
from t2t_relpos.attention.block_layout import KeyWindow, Segment, make_segments
from t2t_relpos.attention.dropout import SeededDropout
from t2t_relpos.attention.masks import combine_masks
from t2t_relpos.attention.table_matmul import matmul_table

# Far below any logit; its difference to a logit is finite. A power of two is exact in every dtype.
_MASKED_SCORE = -(2.0**100)


class _Tensors(NamedTuple):
    """All tensors of a call. None: absent."""

    query: Any
    key: Any
    value: Any
    key_rows: Any = None
    value_rows: Any = None
    key_mask: Any = None
    mask: Any = None
    query_offset: Any = None
    seed: Any = None


@dataclasses.dataclass(frozen=True)
class _Settings:
    """Python constants of a call.

    Args:
        max_relative_position: K, at least 1.
        causal: whether keys after a query are masked.
        query_offset: key position of query 0 if it is an int, else None.
        needs_totals: whether the weights of a query may sum to another number than 1.
        rate: dropout rate, or None.
        save_weights: whether weights are saved for the gradient.
        segments: the `Segment`s of the queries.
        dtype: dtype in which matrices are multiplied.
    """

    max_relative_position: int
    causal: bool
    query_offset: int | None
    needs_totals: bool
    rate: float | None
    save_weights: bool
    segments: tuple[Segment, ...]
    dtype: str

    @property
    def accumulation(self):
        """Dtype of scores, weights and sums: float32 at least."""
        return "float32" if self.dtype in ("float16", "bfloat16") else self.dtype


def attend(inputs, sizes, *, save_weights):
    """Returns the outputs `[B, N, T, Hv]`.

    Args:
        inputs: an `AttentionInputs`.
        sizes: `dispatch.BlockSizes`.
        save_weights: True: the unrolled form. False: the scanned form.
    """
    length_q, length_k = inputs.lengths
    tensors, reference, max_relative_position = _prepare(inputs)
    offset = inputs.query_offset if isinstance(inputs.query_offset, int) else None
    settings = _Settings(
        max_relative_position=max_relative_position,
        causal=inputs.causal,
        query_offset=offset,
        needs_totals=inputs.dropout is not None
        or tensors.key_mask is not None
        or tensors.mask is not None
        or (inputs.causal and (offset is None or offset < 0)),
        rate=None if inputs.dropout is None else inputs.dropout.rate,
        save_weights=save_weights,
        segments=make_segments(
            (length_q, length_k), offset if inputs.causal else None, sizes, unrolled=save_weights
        ),
        dtype=keras.backend.standardize_dtype(tensors.query.dtype),
    )
    outputs = _run(tensors, settings)
    if settings.needs_totals:
        outputs, totals = outputs[..., :-1], outputs[..., -1:]
        reference = None if reference is None else totals * reference
    outputs = outputs if reference is None else outputs + reference
    return ops.cast(outputs, settings.dtype)


def _prepare(inputs):
    """Returns (tensors, reference row of the value table or None, K)."""
    dtype = keras.backend.standardize_dtype(inputs.query.dtype)
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    key_rows, _, k = _difference_rows(inputs.key_table, inputs.causal, wide)
    value_rows, reference, other_k = _difference_rows(inputs.value_table, inputs.causal, wide)
    mask = combine_masks(inputs.mask)
    if mask is not None:
        mask = ops.reshape(mask, (*[1] * (4 - len(mask.shape)), *ops.shape(mask)))
    offset = inputs.query_offset
    tensors = _Tensors(
        query=inputs.query,
        key=inputs.key,
        value=inputs.value,
        key_rows=key_rows,
        value_rows=value_rows,
        key_mask=None if inputs.key_mask is None else ops.cast(inputs.key_mask, "bool"),
        mask=mask,
        query_offset=None if isinstance(offset, int) else ops.cast(offset, "int32"),
        seed=None if inputs.dropout is None else inputs.dropout.seed,
    )
    return tensors, reference, k or other_k or 1


def _difference_rows(table, causal, dtype):
    """Returns (rows without the reference row `[.., L, H]`, reference row `[.., 1, H]`, K)."""
    if table is None:
        return None, None, None
    table = ops.cast(table, dtype)
    if table.shape[-2] == 1:
        table = ops.concatenate([table] * 3, axis=-2)
    k = (table.shape[-2] - 1) // 2
    ids, reference = (slice(1, k + 1), 0) if causal else (slice(0, 2 * k), 2 * k)
    reference = table[..., reference : reference + 1, :]
    return table[..., ids, :] - reference, reference, k


def _run(tensors, settings):
    """Returns the outputs with the gradient of this module."""
    names = [name for name, x in zip(tensors._fields, tensors) if x is not None]

    # All tensors are arguments, because JAX can't differentiate a function that captures some.
    def attention(*args):
        given = _Tensors(**dict(zip(names, args)))
        outputs, saved = _forward(given, settings)

        def gradient(*args, upstream=None):
            if upstream is None:
                used, of_forward, upstream = given, saved, args[0]
            else:
                # PyTorch saves no graph of the forward pass. For second derivatives it is repeated.
                used = _Tensors(**dict(zip(names, args)))
                of_forward = (
                    _forward(used, settings)[1] if _backend.torch_records_gradients() else saved
                )
            gradients = _backward(used, of_forward, upstream, settings)
            return tuple(gradients.get(name) for name in names)

        return outputs, gradient

    return ops.custom_gradient(attention)(*(x for x in tensors if x is not None))


class _Block:
    """One block of queries: its scores, masks and relative terms.

    Args:
        settings: the `_Settings`.
        segment: the `Segment`.
        number: number of the block in the segment, an int or a scalar tensor.
        query_offset: key position of query 0, an int or a scalar tensor.
    """

    def __init__(self, settings, segment, number, query_offset):
        self._settings, self.segment = settings, segment
        self.start = number * segment.block
        self._number = segment.number + number
        self._first = query_offset + segment.start + self.start
        first_range = None
        if isinstance(query_offset, int) and isinstance(segment.count, int):
            first = query_offset + segment.start
            first_range = first, first + (segment.count - 1) * segment.block
        self._window = KeyWindow.of(
            self._first,
            segment,
            settings.max_relative_position,
            causal=settings.causal,
            first_range=first_range,
        )

    def add_bias(self, scores, by_id):
        """Returns scores `[B, N, C, S]` plus biases by id `[B, N, C, L]`."""
        window, num_keys = self._window, self.segment.num_keys
        if not (isinstance(window.width, int) and window.width == 0):
            bias = expand_ids(
                self._with_reference(by_id), window.width, window.offset, window.offset_range
            )
            scores = scores + window.place(bias, num_keys)
        if self._settings.causal or (isinstance(window.start, int) and window.start == 0):
            return scores
        return scores + ops.where(self._in_left_tail(), by_id[..., :1], 0)

    def sum_by_id(self, weights):
        """The transpose of `add_bias`: `[B, N, C, S]` -> `[B, N, C, L]`."""
        window, k = self._window, self._settings.max_relative_position
        if isinstance(window.width, int) and window.width == 0:
            ids = k if self._settings.causal else 2 * k
            sums = ops.repeat(ops.zeros_like(weights[..., :1]), ids, axis=-1)
        else:
            sums = sum_by_id(window.cut(weights), 2 * k + 1, window.offset, window.offset_range)
            sums = sums[..., 1 : k + 1] if self._settings.causal else sums[..., : 2 * k]
        if self._settings.causal or (isinstance(window.start, int) and window.start == 0):
            return sums
        if isinstance(window.start, int):
            tail = ops.sum(weights[..., : window.start], axis=-1, keepdims=True)
        else:
            tail = ops.sum(ops.where(self._in_left_tail(), weights, 0), axis=-1, keepdims=True)
        return ops.concatenate([sums[..., :1] + tail, sums[..., 1:]], axis=-1)

    def _with_reference(self, by_id):
        """Appends zeros for the ids that differ from the reference row by nothing."""
        if not self._settings.causal:
            return ops.concatenate([by_id, ops.zeros_like(by_id[..., :1])], axis=-1)
        return ops.concatenate([ops.zeros_like(by_id[..., :1]), by_id, ops.zeros_like(by_id)], -1)

    def _in_left_tail(self):
        return ops.arange(self.segment.num_keys, dtype="int32") < self._window.start

    def mask(self, scores, key_mask, mask):
        """Returns the scores `[B, N, C, S]` with masked entries set to a large negative number."""
        allowed = None
        if self._settings.causal:
            queries = self._first + ops.arange(self.segment.block, dtype="int32")
            keys = ops.arange(self.segment.num_keys, dtype="int32")
            allowed = keys <= queries[:, None]
        if key_mask is not None:
            exists = self.segment.keys(key_mask[:, None, None], axis=3)
            allowed = exists if allowed is None else ops.logical_and(allowed, exists)
        if mask is not None:
            mask = mask if mask.shape[2] == 1 else self.rows(mask)
            mask = mask if mask.shape[3] == 1 else self.segment.keys(mask, axis=3)
            allowed = mask if allowed is None else ops.logical_and(allowed, mask)
        if allowed is None:
            return scores
        return ops.where(allowed, scores, ops.cast(_MASKED_SCORE, scores.dtype))

    def rows(self, x):
        """Returns the rows of this block in a tensor of the segment's queries."""
        return self.segment.block_rows(x, self.start)

    def dropout_factors(self, weights, seed):
        """Returns the dropout factors of the weights `[B, N, C, S]`; the same at every call."""
        dropout = SeededDropout(self._settings.rate, seed)
        return dropout.factors(ops.shape(weights), weights.dtype, self._number)


def _matmul(x, y, settings):
    product = ops.matmul(ops.cast(x, settings.dtype), ops.cast(y, settings.dtype))
    return ops.cast(product, settings.accumulation)


def _matmul_table(x, table, settings, *, transpose_table=False):
    x, table = ops.cast(x, settings.dtype), ops.cast(table, settings.dtype)
    product = matmul_table(x, table, transpose_table=transpose_table)
    return ops.cast(product, settings.accumulation)


def _by_id(x, rows, settings):
    """Returns the products of `[B, N, T, H]` with all rows, `[B, N, T, L]`, or None."""
    return None if rows is None else _matmul_table(x, rows, settings, transpose_table=True)


def _transpose(x):
    return ops.swapaxes(x, -1, -2)


class _Saved(NamedTuple):
    """Results of the forward pass that the gradient reads.

    Args:
        outputs: as returned, `[B, N, T, Hv]`, or with totals `[B, N, T, Hv + 1]`.
        sums: sums of the weights by id `[B, N, T, L]`, or None.
        log_sums: log-sum-exp of the scores `[B, N, T, 1]`. Fully masked queries have a number so
            large that all their weights are zero.
        weights: weights of every segment, or None.
    """

    outputs: Any
    sums: Any
    log_sums: Any
    weights: Any


def _offset(tensors, settings):
    return tensors.query_offset if settings.query_offset is None else settings.query_offset


class _Segment:
    """The scores of a segment's blocks.

    Args:
        tensors: the `_Tensors`.
        settings: the `_Settings`.
        segment: the `Segment`.
        by_id: products of all queries with the rows of the key table, or None.
    """

    def __init__(self, tensors, settings, segment, by_id):
        self._tensors, self._settings, self._segment = tensors, settings, segment
        self.query = segment.rows(tensors.query)
        self.key, self.value = segment.keys(tensors.key), segment.keys(tensors.value)
        self._by_id = None if by_id is None else segment.rows(by_id)
        self._mask = tensors.mask
        if self._mask is not None and self._mask.shape[2] != 1:
            self._mask = segment.rows(self._mask)

    def block(self, number):
        return _Block(self._settings, self._segment, number, _offset(self._tensors, self._settings))

    def scores(self, block):
        """Returns the masked scores of a block `[B, N, C, S]`."""
        scores = _matmul(block.rows(self.query), _transpose(self.key), self._settings)
        if self._by_id is not None:
            scores = block.add_bias(scores, block.rows(self._by_id))
        return block.mask(scores, self._tensors.key_mask, self._mask)


def _forward(tensors, settings):
    """Returns (outputs, `_Saved`)."""
    by_id = _by_id(tensors.query, tensors.key_rows, settings)
    found = [
        _forward_segment(_Segment(tensors, settings, segment, by_id), tensors, settings, segment)
        for segment in settings.segments
    ]
    outputs, log_sums, *others = (
        ops.concatenate(parts, axis=2) if len(parts) > 1 else parts[0]
        for parts in zip(*(rows for rows, _ in found))
    )
    totals = [others.pop(0)] if settings.needs_totals else []
    sums = others.pop(0) if others else None
    if sums is not None:
        outputs = outputs + _matmul_table(sums, tensors.value_rows, settings)
    # A new tensor, which PyTorch's graph doesn't refer to.
    outputs = ops.concatenate([outputs, *totals], axis=-1)
    saved = _Saved(
        outputs=outputs,
        sums=sums,
        log_sums=log_sums,
        weights=[weights for _, weights in found] if settings.save_weights else None,
    )
    return outputs, saved


def _forward_segment(scores_of, tensors, settings, segment):
    """Returns ([outputs, log-sum-exp, totals, sums by id], weights or None)."""
    weights_of_block = []

    def compute(number):
        block = scores_of.block(number)
        scores = scores_of.scores(block)
        weights, log_sums, total = _softmax(scores)
        if settings.save_weights:
            weights_of_block.append(weights)
        if settings.rate is not None:
            weights = weights * block.dropout_factors(weights, tensors.seed)
            total = ops.sum(weights, axis=-1, keepdims=True)
        rows = [_matmul(weights, scores_of.value, settings), log_sums]
        rows += [total] * settings.needs_totals
        rows += [] if tensors.value_rows is None else [block.sum_by_id(weights)]
        return rows, ()

    depths = [tensors.value.shape[-1], 1, *[1] * settings.needs_totals]
    depths += [] if tensors.value_rows is None else [tensors.value_rows.shape[-2]]
    rows, _ = segment.run(compute, _zeros(segment, depths, tensors, settings))
    return rows, weights_of_block[0] if weights_of_block else None


def _softmax(scores):
    """Returns (weights, log-sum-exp, totals 1 or 0). Fully masked queries have weights of zero."""
    # `initial` allows empty batches.
    largest = ops.max(scores, axis=-1, keepdims=True, initial=_MASKED_SCORE)
    exponentials = ops.exp(scores - largest)
    total = ops.sum(exponentials, axis=-1, keepdims=True)
    has_valid_key = largest > _MASKED_SCORE / 10
    log_sums = ops.where(
        has_valid_key, largest + ops.log(total), ops.cast(-_MASKED_SCORE, scores.dtype)
    )
    has_valid_key = ops.cast(has_valid_key, scores.dtype)
    return exponentials * (has_valid_key / total), log_sums, has_valid_key


def _zeros(segment, depths, tensors, settings):
    """Returns buffers `[B, N, blocks * C, depth]`; none for a single block."""
    if segment.is_single:
        return []
    batch, heads = ops.shape(tensors.query)[:2]
    shape = batch, heads, segment.count * segment.block
    return [ops.zeros((*shape, depth), dtype=settings.accumulation) for depth in depths]


def _backward(tensors, saved, d_outputs, settings):
    """Returns the gradients by name of the tensor."""
    d_outputs = ops.cast(d_outputs, settings.accumulation)
    row_sums = ops.sum(d_outputs * saved.outputs, axis=-1, keepdims=True)
    d_totals = None
    if settings.needs_totals:
        d_outputs, d_totals = d_outputs[..., :-1], d_outputs[..., -1:]
    queries = {
        "d_outputs": d_outputs,
        "row_sums": row_sums,
        "d_totals": d_totals,
        "log_sums": saved.log_sums,
        "d_by_id": _by_id(d_outputs, tensors.value_rows, settings),
    }
    queries = {name: x for name, x in queries.items() if x is not None}
    by_id = _by_id(tensors.query, tensors.key_rows, settings)
    found = []
    for index, segment in enumerate(settings.segments):
        scores_of = _Segment(tensors, settings, segment, by_id)
        given = {name: segment.rows(x) for name, x in queries.items()}
        weights = saved.weights[index] if settings.save_weights else None
        found.append(_backward_segment(scores_of, given, weights, tensors, settings, segment))
    d_query, *d_sums = (
        ops.concatenate(parts, axis=2) if len(parts) > 1 else parts[0]
        for parts in zip(*(rows for rows, _ in found))
    )
    d_key, d_value = (_add_keys([totals[i] for _, totals in found], tensors.key) for i in range(2))
    gradients = {"key": d_key, "value": d_value}
    if d_sums:
        d_query = d_query + _matmul_table(d_sums[0], tensors.key_rows, settings)
        gradients["key_rows"] = _d_rows(d_sums[0], tensors.query, tensors.key_rows, settings)
    if saved.sums is not None:
        gradients["value_rows"] = _d_rows(saved.sums, d_outputs, tensors.value_rows, settings)
    gradients["query"] = d_query
    return {name: ops.cast(x, getattr(tensors, name).dtype) for name, x in gradients.items()}


def _backward_segment(scores_of, given, weights, tensors, settings, segment):
    """Returns ([d_query, sums of d_scores by id], [d_key, d_value])."""

    def compute(number):
        block = scores_of.block(number)
        rows = {name: block.rows(x) for name, x in given.items()}
        used = weights
        if used is None:
            used = ops.exp(scores_of.scores(block) - rows["log_sums"])
        d_weights = _matmul(rows["d_outputs"], _transpose(scores_of.value), settings)
        if "d_by_id" in rows:
            d_weights = block.add_bias(d_weights, rows["d_by_id"])
        if settings.needs_totals:
            d_weights = d_weights + rows["d_totals"]
        dropped = used
        if settings.rate is not None:
            factors = block.dropout_factors(used, tensors.seed)
            dropped, d_weights = used * factors, d_weights * factors
        d_scores = used * (d_weights - rows["row_sums"])
        d_rows = [_matmul(d_scores, scores_of.key, settings)]
        d_rows += [] if tensors.key_rows is None else [block.sum_by_id(d_scores)]
        terms = (
            _matmul(_transpose(d_scores), block.rows(scores_of.query), settings),
            _matmul(_transpose(dropped), rows["d_outputs"], settings),
        )
        return d_rows, terms

    depths = [tensors.query.shape[-1]]
    depths += [] if tensors.key_rows is None else [tensors.key_rows.shape[-2]]
    totals = []
    if not segment.is_single:
        totals = [
            ops.zeros(ops.shape(x), dtype=settings.accumulation)
            for x in (scores_of.key, scores_of.value)
        ]
    return segment.run(compute, _zeros(segment, depths, tensors, settings), totals)


def _add_keys(terms, like):
    """Adds gradients of the first keys `[B, N, <= S, X]`."""
    length = ops.shape(like)[2]
    total = None
    for x in reversed(terms):
        missing = length - ops.shape(x)[2]
        if not (isinstance(missing, int) and missing == 0):
            x = ops.pad(x, [(0, 0), (0, 0), (0, missing), (0, 0)])
        total = x if total is None else total + x
    return total


def _d_rows(sums, x, rows, settings):
    """Returns the gradient of rows `[L, H]` or `[N, L, H]`: `sumsᵀ·x`, summed."""
    if len(rows.shape) == 3:
        d_rows = ops.sum(_matmul(_transpose(sums), x, settings), axis=0)
        return d_rows if rows.shape[0] != 1 else ops.sum(d_rows, axis=0, keepdims=True)
    sums, x = (ops.reshape(y, (-1, y.shape[-1])) for y in (sums, x))
    return _matmul(_transpose(sums), x, settings)
