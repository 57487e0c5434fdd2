"""Forward and backward pass of blockwise attention, segment by segment, in keras.ops."""

from typing import Any, NamedTuple

from keras import ops

from t2t_relpos._backend import accumulation_dtype
from t2t_relpos.attention.block_scores import (
    SegmentScores,
    matmul,
    matmul_differences,
    products_with_differences,
    softmax,
    transpose,
)


class Saved(NamedTuple):
    """Results of the forward pass that the gradient reads.

    Args:
        outputs: as returned by `forward`: `[B, N, T, Hv]`, or `[B, N, T, Hv + 1]` if the last
            column has the sums of the weights after dropout.
        sums: sums of the weights after dropout by id `[B, N, T, L]`, or None.
        log_sums: log-sum-exp of the scores `[B, N, T, 1]`. Fully masked queries have a number so
            large that all their weights are zero.
        weights: weights of every segment before dropout, or None.
    """

    outputs: Any
    sums: Any
    log_sums: Any
    weights: Any


def forward(tensors, settings):
    """Returns (outputs, `Saved`)."""
    by_id = products_with_differences(tensors.query, tensors.key_differences, settings)
    segment_results = [
        _forward_segment(SegmentScores(tensors, settings, segment, by_id))
        for segment in settings.segments
    ]
    results = _join_segments([rows for rows, _ in segment_results])
    outputs, sums = results["outputs"], results.get("sums")
    if sums is not None:
        outputs = outputs + matmul_differences(sums, tensors.value_differences, settings)
    totals = [results["totals"]] if settings.needs_totals else []
    # Always concatenate: PyTorch's graph refers to the first `outputs`. Saving that tensor for the
    # gradient would make a reference cycle.
    outputs = ops.concatenate([outputs, *totals], axis=-1)
    saved = Saved(
        outputs=outputs,
        sums=sums,
        log_sums=results["log_sums"],
        weights=[weights for _, weights in segment_results] if settings.save_weights else None,
    )
    return outputs, saved


def _forward_segment(scores):
    """Returns (dict of outputs, log-sum-exp, sums of weights; the weights to save or None)."""
    tensors, settings, segment = scores.tensors, scores.settings, scores.segment
    weights_of_block = []

    def compute(number):
        block = scores.block(number)
        weights, log_sums, total = softmax(scores.scores(block))
        if settings.save_weights:
            weights_of_block.append(weights)
        if settings.dropout_rate is not None:
            weights = weights * block.dropout_factors(weights, tensors.seed)
            total = ops.sum(weights, axis=-1, keepdims=True)
        rows = {"outputs": matmul(weights, scores.value, settings), "log_sums": log_sums}
        if settings.needs_totals:
            rows["totals"] = total
        if tensors.value_differences is not None:
            rows["sums"] = block.sum_by_id(weights)
        return rows, {}

    depths = {"outputs": tensors.value.shape[-1], "log_sums": 1}
    if settings.needs_totals:
        depths["totals"] = 1
    if tensors.value_differences is not None:
        depths["sums"] = tensors.value_differences.shape[-2]
    rows, _ = segment.run(compute, _buffers(scores, depths), {})
    # Weights are saved only if every segment is a single block.
    return rows, weights_of_block[0] if weights_of_block else None


def _buffers(scores, depths):
    """Returns a dict of buffers `[B, N, blocks * C, depth]`, empty for a single block."""
    segment = scores.segment
    if segment.is_single:
        return {}
    batch, heads = ops.shape(scores.tensors.query)[:2]
    shape = batch, heads, segment.count * segment.block
    dtype = accumulation_dtype(scores.settings.dtype)
    return {name: ops.zeros((*shape, depth), dtype=dtype) for name, depth in depths.items()}


def _join_segments(results):
    """Joins dicts of results `[B, N, queries of a segment, X]` along the queries."""
    if len(results) == 1:
        return results[0]
    return {name: ops.concatenate([x[name] for x in results], axis=2) for name in results[0]}


def backward(tensors, saved, d_outputs, settings):
    """Returns a dict that maps names of tensors to gradients."""
    query_tensors = _query_tensors(tensors, saved, d_outputs, settings)
    by_id = products_with_differences(tensors.query, tensors.key_differences, settings)
    segment_results = []
    for index, segment in enumerate(settings.segments):
        scores = SegmentScores(tensors, settings, segment, by_id)
        of_segment = {name: segment.queries(x) for name, x in query_tensors.items()}
        weights = saved.weights[index] if settings.save_weights else None
        segment_results.append(_backward_segment(scores, of_segment, weights))
    results = _join_segments([rows for rows, _ in segment_results])
    d_query, d_by_id = results["query"], results.get("d_by_id")
    gradients = {
        name: _add_keys([terms[name] for _, terms in segment_results], tensors.key)
        for name in ("key", "value")
    }
    if d_by_id is not None:
        differences = tensors.key_differences
        d_query = d_query + matmul_differences(d_by_id, differences, settings)
        gradients["key_differences"] = _d_differences(d_by_id, tensors.query, differences, settings)
    if saved.sums is not None:
        gradients["value_differences"] = _d_differences(
            saved.sums, query_tensors["d_outputs"], tensors.value_differences, settings
        )
    gradients["query"] = d_query
    return {name: ops.cast(x, getattr(tensors, name).dtype) for name, x in gradients.items()}


def _query_tensors(tensors, saved, d_outputs, settings):
    """Returns a dict of the tensors `[B, N, T, X]` that the gradient reads for each query."""
    d_outputs = ops.cast(d_outputs, accumulation_dtype(settings.dtype))
    query_tensors = {
        "row_sums": ops.sum(d_outputs * saved.outputs, axis=-1, keepdims=True),
        "log_sums": saved.log_sums,
    }
    if settings.needs_totals:
        d_outputs, query_tensors["d_totals"] = d_outputs[..., :-1], d_outputs[..., -1:]
    query_tensors["d_outputs"] = d_outputs
    if tensors.value_differences is not None:
        query_tensors["d_sums"] = products_with_differences(
            d_outputs, tensors.value_differences, settings
        )
    return query_tensors


def _backward_segment(scores, query_tensors, saved_weights):
    """Returns (dict of d_query and d_by_id, dict of d_key and d_value)."""
    tensors, settings, segment = scores.tensors, scores.settings, scores.segment

    def compute(number):
        block = scores.block(number)
        rows = {name: block.queries(x) for name, x in query_tensors.items()}
        weights = saved_weights
        if weights is None:
            weights = ops.exp(scores.scores(block) - rows["log_sums"])
        dropped, d_weights = weights, _d_dropped(scores, block, rows)
        if settings.dropout_rate is not None:
            factors = block.dropout_factors(weights, tensors.seed)
            dropped, d_weights = weights * factors, d_weights * factors
        d_scores = weights * (d_weights - rows["row_sums"])
        results = {"query": matmul(d_scores, scores.key, settings)}
        if tensors.key_differences is not None:
            results["d_by_id"] = block.sum_by_id(d_scores)
        terms = {
            "key": matmul(transpose(d_scores), block.queries(scores.query), settings),
            "value": matmul(transpose(dropped), rows["d_outputs"], settings),
        }
        return results, terms

    depths = {"query": tensors.query.shape[-1]}
    if tensors.key_differences is not None:
        depths["d_by_id"] = tensors.key_differences.shape[-2]
    totals = {}
    if not segment.is_single:
        dtype = accumulation_dtype(settings.dtype)
        keys = {"key": scores.key, "value": scores.value}
        totals = {name: ops.zeros(ops.shape(x), dtype=dtype) for name, x in keys.items()}
    return segment.run(compute, _buffers(scores, depths), totals)


def _d_dropped(scores, block, rows):
    """Returns the gradient of a block's weights after dropout, `[B, N, C, S]`."""
    d_dropped = matmul(rows["d_outputs"], transpose(scores.value), scores.settings)
    if "d_sums" in rows:
        d_dropped = block.add_bias(d_dropped, rows["d_sums"])
    return d_dropped + rows["d_totals"] if "d_totals" in rows else d_dropped


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


def _d_differences(sums, x, differences, settings):
    """Returns the gradient of difference rows `[L, H]` or `[N, L, H]`.

    It is `sumsᵀ·x`, summed over the batch and over heads that share the rows.
    """
    if len(differences.shape) == 3:
        gradient = ops.sum(matmul(transpose(sums), x, settings), axis=0)
        is_shared = differences.shape[0] == 1
        return ops.sum(gradient, axis=0, keepdims=True) if is_shared else gradient
    sums, x = (ops.reshape(y, (-1, y.shape[-1])) for y in (sums, x))
    return matmul(transpose(sums), x, settings)
