"""Forward and backward pass of blockwise attention, segment by segment, in keras.ops."""

from typing import Any, NamedTuple

from keras import ops

from t2t_relpos._backend import accumulation_dtype
from t2t_relpos.attention.block_scores import (
    SegmentScores,
    matmul,
    matmul_rows,
    scores_by_id,
    softmax,
    transpose,
)


class Saved(NamedTuple):
    """Results of the forward pass that the gradient reads.

    Args:
        outputs: as returned by `forward`: `[B, N, T, Hv]`, or `[B, N, T, Hv + 1]` if the last
            column has the sums of the weights.
        sums: sums of the weights by id `[B, N, T, L]`, or None.
        log_sums: log-sum-exp of the scores `[B, N, T, 1]`. Fully masked queries have a number so
            large that all their weights are zero.
        weights: weights of every segment, or None.
    """

    outputs: Any
    sums: Any
    log_sums: Any
    weights: Any


def forward(tensors, settings):
    """Returns (outputs, `Saved`)."""
    by_id = scores_by_id(tensors.query, tensors.key_rows, settings)
    found = [
        _forward_segment(
            SegmentScores(tensors, settings, segment, by_id), tensors, settings, segment
        )
        for segment in settings.segments
    ]
    outputs, log_sums, *others = (
        ops.concatenate(parts, axis=2) if len(parts) > 1 else parts[0]
        for parts in zip(*(rows for rows, _ in found))
    )
    totals = [others.pop(0)] if settings.needs_totals else []
    sums = others.pop(0) if others else None
    if sums is not None:
        outputs = outputs + matmul_rows(sums, tensors.value_rows, settings)
    # Concatenating makes a new tensor, to which PyTorch's graph does not refer.
    outputs = ops.concatenate([outputs, *totals], axis=-1)
    saved = Saved(
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
        weights, log_sums, total = softmax(scores)
        if settings.save_weights:
            weights_of_block.append(weights)
        if settings.dropout_rate is not None:
            weights = weights * block.dropout_factors(weights, tensors.seed)
            total = ops.sum(weights, axis=-1, keepdims=True)
        rows = [matmul(weights, scores_of.value, settings), log_sums]
        rows += [total] * settings.needs_totals
        rows += [] if tensors.value_rows is None else [block.sum_weights_by_id(weights)]
        return rows, ()

    depths = [tensors.value.shape[-1], 1, *[1] * settings.needs_totals]
    depths += [] if tensors.value_rows is None else [tensors.value_rows.shape[-2]]
    rows, _ = segment.run(compute, _zeros(segment, depths, tensors, settings))
    return rows, weights_of_block[0] if weights_of_block else None


def _zeros(segment, depths, tensors, settings):
    """Returns a list of buffers `[B, N, blocks * C, depth]`, empty for a single block."""
    if segment.is_single:
        return []
    batch, heads = ops.shape(tensors.query)[:2]
    shape = batch, heads, segment.count * segment.block
    return [
        ops.zeros((*shape, depth), dtype=accumulation_dtype(settings.dtype)) for depth in depths
    ]


def backward(tensors, saved, d_outputs, settings):
    """Returns a dict that maps names of tensors to gradients."""
    d_outputs = ops.cast(d_outputs, accumulation_dtype(settings.dtype))
    row_sums = ops.sum(d_outputs * saved.outputs, axis=-1, keepdims=True)
    d_totals = None
    if settings.needs_totals:
        d_outputs, d_totals = d_outputs[..., :-1], d_outputs[..., -1:]
    queries = {
        "d_outputs": d_outputs,
        "row_sums": row_sums,
        "d_totals": d_totals,
        "log_sums": saved.log_sums,
        "d_by_id": scores_by_id(d_outputs, tensors.value_rows, settings),
    }
    queries = {name: x for name, x in queries.items() if x is not None}
    by_id = scores_by_id(tensors.query, tensors.key_rows, settings)
    found = []
    for index, segment in enumerate(settings.segments):
        scores_of = SegmentScores(tensors, settings, segment, by_id)
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
        d_query = d_query + matmul_rows(d_sums[0], tensors.key_rows, settings)
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
        d_weights = matmul(rows["d_outputs"], transpose(scores_of.value), settings)
        if "d_by_id" in rows:
            d_weights = block.add_bias(d_weights, rows["d_by_id"])
        if settings.needs_totals:
            d_weights = d_weights + rows["d_totals"]
        dropped = used
        if settings.dropout_rate is not None:
            factors = block.dropout_factors(used, tensors.seed)
            dropped, d_weights = used * factors, d_weights * factors
        d_scores = used * (d_weights - rows["row_sums"])
        d_rows = [matmul(d_scores, scores_of.key, settings)]
        d_rows += [] if tensors.key_rows is None else [block.sum_weights_by_id(d_scores)]
        terms = (
            matmul(transpose(d_scores), block.rows(scores_of.query), settings),
            matmul(transpose(dropped), rows["d_outputs"], settings),
        )
        return d_rows, terms

    depths = [tensors.query.shape[-1]]
    depths += [] if tensors.key_rows is None else [tensors.key_rows.shape[-2]]
    totals = []
    if not segment.is_single:
        totals = [
            ops.zeros(ops.shape(x), dtype=accumulation_dtype(settings.dtype))
            for x in (scores_of.key, scores_of.value)
        ]
    return segment.run(compute, _zeros(segment, depths, tensors, settings), totals)


def _add_keys(terms, like):
    """Returns the sum of gradients of the first keys `[B, N, <= S, X]`, as `[B, N, S, X]`."""
    length = ops.shape(like)[2]
    total = None
    for x in reversed(terms):
        missing = length - ops.shape(x)[2]
        if not (isinstance(missing, int) and missing == 0):
            x = ops.pad(x, [(0, 0), (0, 0), (0, missing), (0, 0)])
        total = x if total is None else total + x
    return total


def _d_rows(sums, x, rows, settings):
    """Returns the gradient of rows `[L, H]` or `[N, L, H]`.

    It is `sumsᵀ·x`, summed over the batch and over heads that share the rows.
    """
    if len(rows.shape) == 3:
        d_rows = ops.sum(matmul(transpose(sums), x, settings), axis=0)
        return d_rows if rows.shape[0] != 1 else ops.sum(d_rows, axis=0, keepdims=True)
    sums, x = (ops.reshape(y, (-1, y.shape[-1])) for y in (sums, x))
    return matmul(transpose(sums), x, settings)
