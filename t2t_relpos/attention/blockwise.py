"""Blockwise relative attention in keras.ops, with a custom gradient.

It is used on JAX and PyTorch, and on TensorFlow with XLA or an accelerator.

The algorithm gets scores by id of difference rows (see `band`), and returns weights by id (see
`tables`). Long tables are arguments instead, so that no tensor has `[T, R]` entries: a block
multiplies the rows whose distances occur in it. The reference row is added outside.

If weights are saved, there is no loop, and each block reads a static slice of the keys. Otherwise,
a loop over the blocks rematerializes the weights: memory is linear in length.

Shapes: C queries of a block; R - 1 ids without that of the reference row.
"""

import dataclasses

from t2t_relpos.attention.band import Distances, difference_rows
from t2t_relpos.attention.blocks import (
    BY_KEY,
    Block,
    key_tensors,
    make_segments,
    query_tensors,
)
from t2t_relpos.attention.tables import (
    Results,
    differentiate,
    extend_tables,
    relative_values,
    scores_by_id,
)
from t2t_relpos.backend import (
    MASKED_SCORE,
    accumulation_dtype,
    add_at,
    ops,
    zeros_like_results,
)

# Tables with more rows than this number of depths are long.
LONG_TABLE = 2


def attend(call, sizes, *, save_weights):
    """Returns the `Results`. To `save_weights` for the gradient requires known lengths."""
    call = extend_tables(call)
    rows, references = _difference_rows(call)
    of_rows = _with_rows(call, rows)
    segments = make_segments(of_rows, sizes, unrolled=save_weights)
    results = differentiate(
        of_rows,
        lambda call: forward(call, segments, save_weights=save_weights),
        lambda call, *results: backward(call, segments, *results),
        lambda call: forward(call, segments, save_weights=False)[0],
    )
    outputs, log_sums = results.outputs, results.log_sums
    if results.weights_by_id is not None:
        relative = relative_values(results.weights_by_id, rows["value_table"], call.query.dtype)
        outputs = outputs + ops.cast(relative, outputs.dtype)
    if call.value_table is not None:
        reference = ops.cast(references["value_table"], outputs.dtype)
        outputs = outputs + (reference if results.total is None else results.total * reference)
    if log_sums is not None and call.key_table is not None:
        of_reference = scores_by_id(call.table_query, references["key_table"])
        log_sums = ops.where(log_sums > MASKED_SCORE, log_sums + of_reference, log_sums)
    return Results(ops.cast(outputs, call.query.dtype), log_sums=log_sums)


def _difference_rows(call):
    """Returns (difference rows, reference rows), two dicts by the name of the table.

    Both have the dtype of queries. Differences are computed in the accumulation dtype.
    """
    dtype, rows, references = accumulation_dtype(call.query.dtype), {}, {}
    for name in ("key_table", "value_table"):
        table = getattr(call, name)
        if table is not None:
            table = ops.cast(table, dtype)
            difference, reference = difference_rows(table, causal=call.causal)
            rows[name] = ops.cast(difference, call.query.dtype)
            references[name] = ops.cast(reference, call.query.dtype)
    return rows, references


def _with_rows(call, rows):
    """Returns the call of the algorithm, with scores by id of the difference rows, or with rows.

    Masks are boolean, of rank 4 for pairs. A query offset that is not an int is int32.
    """
    long = {name: x if _is_long(call, x) else None for name, x in rows.items()}
    scores = None
    if call.key_table is not None and long["key_table"] is None:
        scores = scores_by_id(call.table_query, rows["key_table"])
    has_values = call.value_table is not None
    mask, offset = call.mask, call.query_offset
    if mask is not None:
        mask = ops.reshape(mask, (*[1] * (4 - len(mask.shape)), *ops.shape(mask)))
    return dataclasses.replace(
        call,
        **long,
        scores_by_id=scores,
        relative_query=call.table_query if long.get("key_table") is not None else None,
        needs_weights_by_id=has_values and long["value_table"] is None,
        needs_total=has_values and (call.dropout is not None or call.may_be_fully_masked),
        # Without tables, distances have no effect on the outputs.
        max_relative_position=call.distances or Distances(1, 1),
        mask=mask,
        key_mask=None if call.key_mask is None else ops.cast(call.key_mask, "bool"),
        query_offset=offset if isinstance(offset, int) else ops.cast(offset, "int32"),
    )


def _is_long(call, rows):
    return rows.shape[-2] > LONG_TABLE * max(call.key_dim, call.value_dim)


def forward(call, segments, *, save_weights):
    """Returns (`Results`, the `Results` that the gradient reads).

    The latter have the weights of every segment, if they are saved: every segment must be one
    block. Their log-sum-exp of a fully masked query is so large that all its weights are zero.
    """
    found = [_forward_segment(call, segment, save_weights=save_weights) for segment in segments]
    saved = Results(**_join_segments([rows for rows, _ in found]))
    log_sums = None
    if call.needs_log_sums:
        # `weights_and_log_sums` returns -MASKED_SCORE for fully masked queries.
        log_sums = ops.where(saved.log_sums < -MASKED_SCORE, saved.log_sums, MASKED_SCORE)
    weights = [weights for _, weights in found] if save_weights else None
    return saved._replace(log_sums=log_sums), saved._replace(weights=weights)


def _forward_segment(call, segment, *, save_weights):
    """Returns (a dict of results by query, weights before dropout if saved, or None)."""
    by_query, by_key = query_tensors(call, segment), key_tensors(call, segment)
    saved_weights = []

    def compute(number):
        results, weights = Block(call, segment, number, by_query, by_key).forward()
        if save_weights:
            saved_weights.append(weights)
        return results, {}, 0

    depths = {"outputs": call.value.shape[-1], "log_sums": 1}
    if call.needs_weights_by_id:
        depths["weights_by_id"] = call.distances.num_ids - 1
    if call.needs_total:
        depths["total"] = 1
    rows, _ = segment.run(compute, _buffers(call, segment, depths), {})
    return rows, saved_weights[0] if save_weights else None


def backward(call, segments, saved, d_results):
    """Returns a dict that maps names of tensors to gradients.

    With scores s, weights p, dropout factors m, values v of keys and d_w of their ids, the gradient
    of a score is `p·(m·(do·v + d_w) - row)`, where row is the sum of `p·m·(do·v + d_w)` minus the
    gradient of the log-sum-exp.
    """
    d_outputs = ops.cast(d_results.outputs, accumulation_dtype(call.query.dtype))
    row_sums = ops.sum(d_outputs * saved.outputs, axis=-1, keepdims=True)
    by_query = {"d_outputs": d_outputs, "log_sums": saved.log_sums}
    if saved.weights_by_id is not None:
        d_by_id = by_query["d_weights_by_id"] = d_results.weights_by_id
        row_sums = row_sums + ops.sum(d_by_id * saved.weights_by_id, axis=-1, keepdims=True)
    if saved.total is not None:
        by_query["d_total"] = d_results.total
        row_sums = row_sums + d_results.total * saved.total
    if d_results.log_sums is not None:
        row_sums = row_sums - d_results.log_sums
    by_query["row_sums"] = row_sums
    rows, totals = [], {}
    # In causal attention, the last segment reads all keys.
    for index in reversed(range(len(segments))):
        weights = None if saved.weights is None else saved.weights[index]
        of_segment, terms = _backward_segment(call, segments[index], by_query, weights)
        rows.insert(0, of_segment)
        for name, x in terms.items():
            first_key = segments[index].first_key if name in BY_KEY else None
            totals[name] = _add_terms(totals.get(name), x, first_key, call)
    gradients = _join_segments(rows) | totals
    return {name: ops.cast(x, getattr(call, name).dtype) for name, x in gradients.items()}


def _backward_segment(call, segment, of_outputs, weights):
    """Returns (a dict of gradients by query, a dict of terms of the other gradients)."""
    by_query, by_key = query_tensors(call, segment), key_tensors(call, segment)
    by_query |= {name: segment.queries(x) for name, x in of_outputs.items()}

    def compute(number):
        block = Block(call, segment, number, by_query, by_key)
        return *block.backward(weights), block.first_key

    names = "query", "scores_by_id", "relative_query"
    tensors = {name: getattr(call, name) for name in names}
    depths = {name: x.shape[-1] for name, x in tensors.items() if x is not None}
    totals = {}
    if not segment.is_single:
        dtype = accumulation_dtype(call.query.dtype)
        tensors = {name: getattr(call, name) for name in ("key_table", "value_table")}
        tensors |= {name: by_key[name] for name in BY_KEY}
        totals = {
            name: zeros_like_results(ops.shape(x), dtype, x)
            for name, x in tensors.items()
            if x is not None
        }
    return segment.run(compute, _buffers(call, segment, depths), totals)


def _buffers(call, segment, depths):
    """Returns a dict of buffers `[B, N, blocks * C, depth]`, empty for a single block."""
    if segment.is_single:
        return {}
    batch, heads = ops.shape(call.query)[:2]
    shape = batch, heads, segment.count * segment.block
    dtype = accumulation_dtype(call.query.dtype)
    return {
        name: zeros_like_results((*shape, depth), dtype, call.query)
        for name, depth in depths.items()
    }


def _join_segments(results):
    """Joins dicts of results `[B, N, queries of a segment, X]` along the queries."""
    if len(results) == 1:
        return results[0]
    return {name: ops.concatenate([x[name] for x in results], axis=2) for name in results[0]}


def _add_terms(total, terms, first_key, call):
    """Returns the sum of the terms of a gradient. `total` is None, or the sum of earlier terms.

    Terms by key `[B, G, keys of a segment, X]` begin at `first_key`. It is None for other terms.
    """
    if first_key is None:
        return terms if total is None else total + terms
    after = ops.shape(call.key)[2] - first_key - ops.shape(terms)[2]
    if isinstance(after, int) and first_key == after == 0:
        return terms if total is None else total + terms
    if total is None:
        return ops.pad(terms, [(0, 0), (0, 0), (first_key, after), (0, 0)])
    return add_at(total, terms, first_key)
