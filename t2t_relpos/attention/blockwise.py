"""Blockwise relative attention in keras.ops, with a custom gradient.

It is used on JAX and PyTorch, and on TensorFlow with XLA or an accelerator. Tables are difference
rows (see `band.difference_rows`), which are nonzero in two regions:

- the band, which `skew.expand_ids` and `skew.sum_by_id` handle. For a block of queries it has
  consecutive keys;
- the left tail, if bidirectional: all keys before the band share relative id 0.

The unrolled form reads a static slice of keys for each block, and saves the weights. The scanned
form loops over the blocks and rematerializes the weights: memory is linear in length.

Shapes: C queries of a block; L ids without the reference row (left + right, or left if causal).
"""

import dataclasses
from typing import Any, NamedTuple

import keras

from t2t_relpos.attention.band import Distances, difference_rows, extend_table
from t2t_relpos.attention.blocks import (
    Block,
    key_tensors,
    make_segments,
    matmul,
    needs_total,
    query_tensors,
    transpose,
)
from t2t_relpos.attention.tables import Results, differentiate, matmul_table
from t2t_relpos.backend import accumulation_dtype, ops, zeros_like_results


def attend(call, sizes, *, unrolled):
    """Returns the outputs, in the unrolled form or in the scanned one."""
    call, reference = _with_difference_rows(call)
    segments = make_segments(call, sizes, unrolled=unrolled)
    outputs = differentiate_outputs(
        call,
        lambda call: forward(call, segments, save_weights=unrolled),
        lambda call, *results: backward(call, segments, *results),
        lambda call: forward(call, segments, save_weights=False)[0],
    )
    if needs_total(call):
        outputs, total = ops.split(outputs, [call.value.shape[-1]], axis=-1)
        reference = None if reference is None else total * reference
    outputs = outputs if reference is None else outputs + reference
    return Results(ops.cast(outputs, keras.backend.standardize_dtype(call.query.dtype)))


def _with_difference_rows(call):
    """Returns (the call with difference rows as tables, reference row of the values or None).

    Without tables, distances are 1, which has no effect on the outputs. Masks are boolean, of rank
    4 for pairs. A query offset that is not an int is int32.
    """
    dtype = accumulation_dtype(keras.backend.standardize_dtype(call.query.dtype))
    distances = call.distances or Distances(1, 1)
    extended = distances.extended(causal=call.causal)
    tables, references = {}, {}
    for name in ("key_table", "value_table"):
        table = getattr(call, name)
        if table is not None:
            # Keys after a query have no rows.
            needed = extended._replace(right=0) if call.causal else extended
            table = extend_table(ops.cast(table, dtype), distances, needed)
            rows = difference_rows(table, extended, causal=call.causal)
            tables[name], references[name] = rows
    mask, offset = call.mask, call.query_offset
    if mask is not None:
        mask = ops.reshape(mask, (*[1] * (4 - len(mask.shape)), *ops.shape(mask)))
    call = dataclasses.replace(
        call,
        **tables,
        max_relative_position=extended,
        mask=mask,
        key_mask=None if call.key_mask is None else ops.cast(call.key_mask, "bool"),
        query_offset=offset if isinstance(offset, int) else ops.cast(offset, "int32"),
    )
    return call, references.get("value_table")


def differentiate_outputs(call, forward, backward, plain):
    """Returns outputs with a custom gradient: `differentiate` for an algorithm with tables.

    Args:
        call: an `AttentionCall`.
        forward: function of the call that returns (outputs, saved results).
        backward: function of the call, the saved results and the gradient of the outputs that
            returns a dict of gradients.
        plain: function of the call that returns the outputs.
    """

    def run(call):
        outputs, saved = forward(call)
        return Results(outputs), saved

    return differentiate(
        call,
        run,
        lambda call, saved, d_results: backward(call, saved, d_results.outputs),
        lambda call: Results(plain(call)),
    ).outputs


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


def forward(call, segments, *, save_weights):
    """Returns (outputs, `Saved`) of a call whose tables are difference rows.

    Weights can only be saved if every segment is one block.
    """
    by_id = products_with_rows(call.query, call.key_table, call.query.dtype)
    segment_results = [
        _forward_segment(call, segment, by_id, save_weights=save_weights) for segment in segments
    ]
    results = _join_segments([rows for rows, _ in segment_results])
    outputs, sums = results["outputs"], results.get("sums")
    if sums is not None:
        outputs = outputs + matmul_rows(sums, call.value_table, call.query.dtype)
    total = [results["total"]] if needs_total(call) else []
    # Always concatenate: PyTorch's graph refers to the first `outputs`. Saving that tensor for the
    # gradient would make a reference cycle.
    outputs = ops.concatenate([outputs, *total], axis=-1)
    return outputs, Saved(
        outputs=outputs,
        sums=sums,
        log_sums=results["log_sums"],
        weights=[weights for _, weights in segment_results] if save_weights else None,
    )


def _forward_segment(call, segment, by_id, *, save_weights):
    """Returns (a dict of results by query, weights before dropout if saved, or None)."""
    by_query, by_key = query_tensors(call, by_id, segment), key_tensors(call, segment)
    saved_weights = []

    def compute(number):
        results, weights = Block(call, segment, number, by_query, by_key).forward()
        if save_weights:
            saved_weights.append(weights)
        return results, {}, 0

    depths = {"outputs": call.value.shape[-1], "log_sums": 1}
    if needs_total(call):
        depths["total"] = 1
    if call.value_table is not None:
        depths["sums"] = call.value_table.shape[-2]
    rows, _ = segment.run(compute, _buffers(call, segment, depths), {})
    return rows, saved_weights[0] if save_weights else None


def backward(call, segments, saved, d_outputs):
    """Returns a dict that maps names of tensors to gradients."""
    dtype = call.query.dtype
    by_id = products_with_rows(call.query, call.key_table, dtype)
    of_outputs = _output_gradients(call, saved, d_outputs)
    segment_results = []
    for index, segment in enumerate(segments):
        weights = None if saved.weights is None else saved.weights[index]
        segment_results.append(_backward_segment(call, segment, by_id, of_outputs, weights))
    results = _join_segments([rows for rows, _ in segment_results])
    d_query, d_by_id = results["query"], results.get("d_by_id")
    gradients = {
        name: _add_keys([terms[name] for _, terms in segment_results], segments, call.key)
        for name in ("key", "value")
    }
    if d_by_id is not None:
        d_query = d_query + matmul_rows(d_by_id, call.key_table, dtype)
        gradients["key_table"] = d_rows(d_by_id, call.query, call.key_table, dtype)
    if saved.sums is not None:
        d_outputs = of_outputs["d_outputs"]
        gradients["value_table"] = d_rows(saved.sums, d_outputs, call.value_table, dtype)
    gradients["query"] = d_query
    return {name: ops.cast(x, getattr(call, name).dtype) for name, x in gradients.items()}


def _backward_segment(call, segment, by_id, of_outputs, weights):
    """Returns (a dict of gradients by query, a dict of gradients of keys and values)."""
    by_query, by_key = query_tensors(call, by_id, segment), key_tensors(call, segment)
    by_query |= {name: segment.queries(x) for name, x in of_outputs.items()}

    def compute(number):
        block = Block(call, segment, number, by_query, by_key)
        return *block.backward(weights), block.first_key

    depths = {"query": call.query.shape[-1]}
    if call.key_table is not None:
        depths["d_by_id"] = call.key_table.shape[-2]
    sums_by_key = {}
    if not segment.is_single:
        dtype = accumulation_dtype(call.query.dtype)
        keys = {name: by_key[name] for name in ("key", "value")}
        sums_by_key = {n: zeros_like_results(ops.shape(x), dtype, x) for n, x in keys.items()}
    return segment.run(compute, _buffers(call, segment, depths), sums_by_key)


def _output_gradients(call, saved, d_outputs):
    """Returns a dict of the tensors `[B, N, T, X]` that the gradient reads for each query.

    With scores s, weights p, dropout factors m and rows v of values and of the table, the outputs
    are `sum(p·m·v)`, and the gradient is `ds = p·(m·(do·v) - row_sums)`. The dict has:

    - `"d_outputs"`: do;
    - `"row_sums"`: `do·outputs`, equal to `sum(p·m·(do·v))`;
    - `"log_sums"`: log-sum-exp of the scores, from which the weights are computed again;
    - `"d_sums"`, if there is a value table: the products of do and its difference rows;
    - `"d_total"`, if the weights have a sum other than 1: the product of do and its reference row.
    """
    d_outputs = ops.cast(d_outputs, accumulation_dtype(call.query.dtype))
    tensors = {
        "row_sums": ops.sum(d_outputs * saved.outputs, axis=-1, keepdims=True),
        "log_sums": saved.log_sums,
    }
    if needs_total(call):
        d_outputs, tensors["d_total"] = d_outputs[..., :-1], d_outputs[..., -1:]
    tensors["d_outputs"] = d_outputs
    if call.value_table is not None:
        tensors["d_sums"] = products_with_rows(d_outputs, call.value_table, call.query.dtype)
    return tensors


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


def _add_keys(terms, segments, like):
    """Returns the sum of gradients of the segments' keys, as `[B, N, S, X]`."""
    length = ops.shape(like)[2]
    total = None
    for x, segment in zip(reversed(terms), reversed(segments)):
        after = length - segment.first_key - ops.shape(x)[2]
        if not (isinstance(after, int) and segment.first_key == after == 0):
            x = ops.pad(x, [(0, 0), (0, 0), (segment.first_key, after), (0, 0)])
        total = x if total is None else total + x
    return total


def products_with_rows(x, rows, dtype):
    """Returns the products of `[B, N, T, H]` with difference rows, `[B, N, T, L]`, or None."""
    if rows is None:
        return None
    return matmul_rows(x, rows, dtype, transpose_table=True)


def matmul_rows(x, rows, dtype, *, transpose_table=False):
    """Returns the product of x `[B, N, T, L or H]` and difference rows, as `matmul`."""
    x, rows = ops.cast(x, dtype), ops.cast(rows, dtype)
    product = matmul_table(x, rows, transpose_table=transpose_table)
    return ops.cast(product, accumulation_dtype(dtype))


def d_rows(sums, x, rows, dtype):
    """Returns the gradient of difference rows `[L, H]` or `[N, L, H]`.

    It is `sumsᵀ·x`, summed over the batch and over heads that share the rows.
    """
    if len(rows.shape) == 3:
        gradient = ops.sum(matmul(transpose(sums), x, dtype), axis=0)
        is_shared = rows.shape[0] == 1
        return ops.sum(gradient, axis=0, keepdims=True) if is_shared else gradient
    sums, x = (ops.reshape(y, (-1, y.shape[-1])) for y in (sums, x))
    return matmul(transpose(sums), x, dtype)
