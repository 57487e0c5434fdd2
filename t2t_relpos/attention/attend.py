"""The entry point of relative attention.

Relations, images and local blocks use `gather` and `t2t_variants`. Decoding steps of `generate` use
`t2t_relpos.models.folded.transformer`.
"""

import math

import keras

from t2t_relpos import _checks, backend
from t2t_relpos.attention import dispatch
from t2t_relpos.attention.band import Distances
from t2t_relpos.attention.call import AttentionCall
from t2t_relpos.attention.dropout import AttentionDropout, SeededDropout
from t2t_relpos.attention.masks import conjunction
from t2t_relpos.backend import MASKED_SCORE, as_tensor, as_tensors, ops


@backend.on_device_of_query
def attend(
    query,
    key,
    value,
    key_table=None,
    value_table=None,
    *,
    relative_query=None,
    max_relative_position=None,
    beyond="clip",
    mask=None,
    query_mask=None,
    key_mask=None,
    bias=None,
    causal=False,
    query_offset=None,
    sliding_window=None,
    relative_ids=None,
    sinks=None,
    dropout=None,
    return_weights=True,
    return_log_sums=False,
    rematerialize=None,
    implementation=None,
):
    """Returns attention whose scores and outputs also depend on relative positions.

    `softmax(q·kᵀ + r·a^Kᵀ)·(v + a^V)`, where `a[i, j]` is row `clip(j - i, -left, right) + left` of
    a table, and r is q unless there is a `relative_query`. Scores are not scaled: scale `query`.
    Other tensors are cast to the dtype of `query`.

    Args:
        query: `[B, N, T, H]`.
        key: `[B, G, S, H]`. G divides N. With fewer heads than queries (grouped queries), head n of
            the queries has the keys of head `n // (N / G)`, which only `flash` repeats in memory.
        value: `[B, G, S, Hv]`.
        key_table: a^K, `[R, H]` for all heads or `[N, R, H]`, or None. R is left + right + 1.
            Default: None.
        value_table: a^V, `[R, Hv]` or `[N, R, Hv]`, or None. Default: None.
        relative_query: r, `[B, N, T, D]`, multiplied with a key table of depth D. Default: `query`.
        max_relative_position: clipping distance K, or a pair (left, right) of them. Default: K of
            an odd number of rows, R = 2K + 1.
        beyond: "clip": pairs at larger distances have the last row of their side. "zero": they have
            no row. Default: "clip".
        mask: bool `[T, S]`, `[B, T, S]` or `[B, N, T, S]`, axes may have size 1; True = attend. A
            fully masked query gets zeros. Default: None.
        query_mask: bool `[B, T]`. Queries that are False get zeros. Default: None.
        key_mask: bool `[B, S]`; True = attend. Default: None.
        bias: finite numbers that are added to the scores, float `[T, S]`, `[B, T, S]` or
            `[B, N, T, S]`, axes may have size 1. Memory is then quadratic in length. Default: None.
        causal: whether keys after a query are masked, by `query_offset`. Default: False.
        query_offset: key position of query 0: an int, a scalar tensor, or an int tensor `[B]` with
            a position per batch entry. Default: `S - T`.
        sliding_window: a query attends to keys at distances less than this, by `query_offset`. In
            long sequences, time is proportional to it. Default: None, no limit.
        relative_ids: table rows, int `[T, S]` or `[B, T, S]`, in `[0, R - 1]`. Default: by
            `query_offset`.
        sinks: scores of one more key without a value, `[N]` or `[B, N, T]`. Weights of the other
            keys then have a sum below 1. Default: None.
        dropout: an `AttentionDropout`, or a function of the weights `[B, N, T, S]`, or None.
            Default: None.
        return_weights: False allows implementations that never compute the full weight matrix.
            Default: True.
        return_log_sums: whether the log-sum-exp of the scores is returned. Default: False.
        rematerialize: whether the gradient computes the weights again, so that memory is linear in
            length. True: at any length. False, for training, and None, for inference: above the
            limits in docs/how_it_works/dispatch.md. Default: None.
        implementation: name of a row of `dispatch.TABLE`. Default: chosen by `dispatch.select`.

    Returns:
        (outputs `[B, N, T, Hv]`, weights before dropout `[B, N, T, S]`, or None if not
        `return_weights`), in the dtype of `query`. With `return_log_sums`, a third result: the
        log-sum-exp `[B, N, T]` of the scores without sinks, in float32, or float64 for queries in
        float64. It is minus infinity for fully masked queries.

    Raises:
        ValueError: if `query` is not of a floating-point dtype, a mask is of a float dtype,
            `query_offset` or `relative_ids` are not integers, `sliding_window` is not a positive
            integer, `max_relative_position` is neither an int nor a pair, a tensor has the wrong
            shape, there is a `relative_query` without a key table, or no implementation meets the
            request.

    Reference: Shaw et al. 2018, equations 3 and 4; t2t `dot_product_attention_relative`.

    Example:
    >>> import numpy as np
    >>> from keras import ops
    >>> from t2t_relpos.attention import attend
    >>> q = k = v = np.ones((1, 2, 3, 4), "float32")
    >>> table = np.ones((5, 4), "float32")
    >>> outputs, weights = attend(q, k, v, table, table)
    >>> ops.convert_to_numpy(outputs)[0, 0, 0].tolist()
    [2.0, 2.0, 2.0, 2.0]
    """
    tables, masks = (key_table, value_table), (mask, key_mask, query_mask)
    floats = query, key, value, *tables, bias, relative_query, sinks
    tensors = _as_tensors(floats, (*masks, relative_ids))
    options = {
        "max_relative_position": max_relative_position,
        "beyond": beyond,
        "causal": causal,
        "query_offset": query_offset,
        "sliding_window": sliding_window,
        "return_weights": return_weights,
        "return_log_sums": return_log_sums,
        "rematerialize": rematerialize,
        "implementation": implementation,
        "is_checked": False,
    }
    return _attend_with_dropout(tensors, options, dropout)


@backend.on_device_of_query
def attend_unchecked(query, key, value, key_table, value_table, *, dropout=None, **options):
    """Returns the results of `attend` for a layer, which has checked the tensors.

    `options` are other arguments of `attend`.
    """
    floats = query, key, value, key_table, value_table
    floats += tuple(options.pop(name, None) for name in _FLOATS[len(floats) :])
    tensors = _as_tensors(floats, [options.pop(name, None) for name in _OTHER_TENSORS])
    options = _DEFAULTS | options | {"is_checked": True}
    return _attend_with_dropout(tensors, options, dropout)


_FLOATS = "query", "key", "value", "key_table", "value_table", "bias", "relative_query", "sinks"
_OTHER_TENSORS = "mask", "key_mask", "query_mask", "relative_ids"
_DEFAULTS = {
    "max_relative_position": None,
    "beyond": "clip",
    "query_offset": None,
    "return_weights": True,
    "return_log_sums": False,
    "implementation": None,
}


def _as_tensors(floats, others):
    """Returns a dict of tensors by name, of the values of `_FLOATS` and of `_OTHER_TENSORS`."""
    tensors = dict(zip(_FLOATS, as_tensors(*floats), strict=True))
    return tensors | dict(zip(_OTHER_TENSORS, map(as_tensor, others), strict=True))


def _attend_with_dropout(tensors, options, dropout):
    """Returns the results of `attend`. `tensors` and `options` are as in `_attend`."""
    if dropout is not None and not isinstance(dropout, AttentionDropout):
        outputs, *others = _attend(tensors, options, dropout)
    else:
        # The seed is drawn outside of the branches of `_run_first`.
        drawn = None if dropout is None else dropout.with_drawn_seed()
        of_dropout = {} if drawn is None else {"rate": drawn.rate, "seed": drawn.seed}
        outputs, *others = _attend_with_seed(tensors, options, of_dropout)
    weights = others.pop(0) if options["return_weights"] else None
    return outputs, weights, *others


def _types_of_results(tensors, options, _):
    """Returns pairs (shape, name of the dtype) of the results of `_attend_with_seed`."""
    query, key, value = (tensors[name] for name in ("query", "key", "value"))
    dtype, lead = keras.backend.standardize_dtype(query.dtype), tuple(query.shape[:3])
    types = [((*lead, value.shape[-1]), dtype)]
    if options["return_weights"]:
        types.append(((*lead, key.shape[2]), dtype))
    if options["return_log_sums"]:
        types.append((lead, backend.accumulation_dtype(dtype)))
    return types


@backend.without_autograph
@backend.as_one_node(_types_of_results)
def _attend_with_seed(tensors, options, of_dropout):
    """Returns the results of `_attend`. It is one node in a graph of torch.compile.

    `of_dropout` has the fields of a `SeededDropout`, or is empty without dropout.
    """
    return _attend(tensors, options, SeededDropout(**of_dropout) if of_dropout else None)


def _attend(tensors, options, dropout):
    """Returns a list: outputs; weights, if they are returned; log-sum-exps, if they are returned.

    `tensors` and `options` are the arguments of `attend` but `dropout`, which is a `SeededDropout`,
    a function of the weights, or None. The option `is_checked` says whether tensors are checked.
    """
    tensors, options = dict(tensors), dict(options)
    query_mask, sinks = tensors.pop("query_mask"), tensors.pop("sinks")
    implementation, return_log_sums = options.pop("implementation"), options.pop("return_log_sums")
    if not options.pop("is_checked"):
        _check(tensors, query_mask, sinks)
    tensors["mask"] = conjunction(tensors["mask"])
    bias = tensors["bias"]
    if bias is not None and len(bias.shape) == 3:
        tensors["bias"] = ops.expand_dims(bias, 1)
    lengths = [backend.size(tensors[name], 2) for name in ("query", "key")]
    ids = tensors["relative_ids"]
    value = options.pop("max_relative_position")
    call = AttentionCall.from_arguments(
        *lengths,
        _max_relative_position(value, tensors),
        ids_rank=None if ids is None else len(ids.shape),
        has_bias=bias is not None,
        seeded_dropout=dropout is None or isinstance(dropout, SeededDropout),
        dropout=dropout,
        needs_log_sums=return_log_sums or sinks is not None,
        **options,
        **tensors,
    )
    outputs, *weights = _run_first(dispatch.select(call, implementation), call)
    log_sums = weights.pop() if call.needs_log_sums else None
    results = [outputs, *weights]
    if sinks is not None:
        results = _with_sinks(results, log_sums, sinks)
    exists = None if query_mask is None else ops.expand_dims(ops.cast(query_mask, "bool"), (1, 3))
    if exists is not None:
        results = [ops.where(exists, x, 0) for x in results]
    if return_log_sums:
        has_key = log_sums > MASKED_SCORE
        has_key = has_key if exists is None else ops.logical_and(has_key, exists)
        results.append(ops.where(has_key, log_sums, -math.inf)[..., 0])
    return results


def _with_sinks(results, log_sums, sinks):
    """Returns results `[B, N, T, X]` times the weight that a sink `[N]` or `[B, N, T]` leaves."""
    sinks = ops.cast(sinks, log_sums.dtype)
    sinks = sinks[:, None, None] if len(sinks.shape) == 1 else sinks[..., None]
    factors = ops.sigmoid(log_sums - sinks)
    return [ops.cast(ops.cast(x, factors.dtype) * factors, x.dtype) for x in results]


_TABLE_ADVICE = (
    "Both tables have the same number of rows R: 2 * max_relative_position + 1, or that of the "
    "`relative_ids`. They are for all heads, or have one table for each head."
)


def _check(tensors, query_mask, sinks):
    """Raises ValueError if the tensors of a call have unsupported dtypes or shapes."""
    sizes = _checks.check(tensors["query"], "query", "B N T H", "float")
    advice = "Query, key and value have the same batch size B. Key and value have as many heads G."
    of_scores = _checks.check(tensors["key"], "key", "B G S H", sizes=sizes, advice=advice)
    _checks.check(tensors["value"], "value", "B G S Hv", sizes=of_scores, advice=advice)
    _check_groups(sizes, of_scores)
    _check_relative_query(tensors, sizes)
    _checks.check(sinks, "sinks", "N | B N T", "float", sizes)
    _checks.check(tensors["key_mask"], "key_mask", "B S", "mask", of_scores, broadcast="B")
    _checks.check(query_mask, "query_mask", "B T", "mask", sizes, broadcast="B")
    shapes = "T S | B T S | B N T S"
    for name, dtype in (("mask", "mask"), ("bias", "float")):
        _checks.check(tensors[name], name, shapes, dtype, of_scores, broadcast="B N T S")
    ids, sizes = tensors["relative_ids"], {"N": sizes.get("N")}
    depth_of_keys = "H" if tensors["relative_query"] is None else "D"
    for name, depth in (("key_table", depth_of_keys), ("value_table", "Hv")):
        shapes = f"R {depth} | N R {depth}"
        sizes = _checks.check(tensors[name], name, shapes, sizes=sizes, advice=_TABLE_ADVICE)
        sizes.pop(depth, None)
    if ids is not None:
        _checks.check(ids, "relative_ids", "T S | B T S", "int")
        if "R" in sizes:
            _checks.in_range(
                ids, "`relative_ids`", 0, sizes["R"], "They are the rows of the tables."
            )


def _check_groups(sizes, of_scores):
    """Raises ValueError unless the number of heads of keys divides that of queries."""
    heads, groups = sizes.get("N"), of_scores.get("G")
    if isinstance(heads, int) and isinstance(groups, int) and (not groups or heads % groups):
        raise ValueError(
            "Expected keys and values whose number of heads G divides that of the queries, N. "
            f"Received: N = {heads} and G = {groups}."
        )


def _check_relative_query(tensors, sizes):
    """Raises ValueError unless a relative query has the shape of the queries, and a table."""
    relative_query, table = tensors["relative_query"], tensors["key_table"]
    if relative_query is None:
        return
    if table is None:
        raise ValueError(
            "Expected a `key_table` with `relative_query`, whose rows it is multiplied with. "
            "Received: None. Pass `key_table`, or no `relative_query`."
        )
    sizes = {name: sizes.get(name) for name in "BNT"} | {"D": table.shape[-1]}
    advice = "D is the depth of `key_table`."
    _checks.check(relative_query, "relative_query", "B N T D", "float", sizes, advice=advice)


def _max_relative_position(value, tensors):
    """Returns the clipping distances of tables: K or (left, right). None: no tables."""
    if value is not None:
        value = _checks.max_relative_position(value)
    key_table, value_table = tensors["key_table"], tensors["value_table"]
    table = value_table if key_table is None else key_table
    if table is None:
        return None
    # While PyTorch traces an export, sizes are tensors.
    rows = int(table.shape[-2])
    if value is None:
        if rows % 2 == 0 and tensors["relative_ids"] is None:
            raise ValueError(
                "Expected tables with an odd number of rows, R = 2 * max_relative_position + 1. "
                f"Received: {rows} rows. Pass max_relative_position=(left, right) for tables of "
                "left + right + 1 rows, or `relative_ids` for other tables."
            )
        return _checks.max_relative_position(((rows - 1) // 2, rows // 2))
    expected = Distances.of(value).num_ids
    if rows != expected:
        raise ValueError(
            f"Expected tables with {expected} rows, one for each distance of "
            f"max_relative_position={value}. Received: {rows} rows."
        )
    return value


def _run_first(candidates, call):
    """Returns the results of the first candidate whose condition holds, as `_results`."""
    implementations, conditions = zip(*candidates)
    if len(candidates) == 1:
        return _results(implementations[0], call)
    tensors = call.tensors()
    static = implementations, call.with_tensors(dict.fromkeys(tensors))
    arguments = static, (conditions[:-1], tensors)
    if not call.seeded_dropout:  # The function may read tensors that are no arguments.
        return _run_branches(*arguments)
    return backend.call_shared(_run_branches, *arguments)


def _run_branches(static, dynamic):
    """Returns the results of the first implementation whose condition is true.

    The last implementation has no condition.
    """
    (first, *rest), call = static
    conditions, tensors = dynamic

    def run():
        # In a branch of a shared function, custom gradients of TensorFlow read no other tensors.
        return _results(first, call.with_tensors({n: ops.copy(x) for n, x in tensors.items()}))

    if not rest:
        return run()
    others = (rest, call), (conditions[1:], tensors)
    return ops.cond(conditions[0], run, lambda: _run_branches(*others))


def _results(implementation, call):
    """Returns a list: outputs; weights, if they are returned; log-sum-exps, if they are needed."""
    found = implementation.attend(call)
    results = [found.outputs, found.weights] if call.return_weights else [found.outputs]
    # `ops.matmul` of PyTorch and a dropout function may return another dtype.
    results = [ops.cast(x, call.query.dtype) for x in results]
    return [*results, found.log_sums] if call.needs_log_sums else results
