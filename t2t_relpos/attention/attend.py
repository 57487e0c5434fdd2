"""The entry point of relative attention. Every layer calls `attend`.

Decoding steps of `generate` use `t2t_relpos.models.folded.cached_attention` instead.
"""

from keras import ops

from t2t_relpos import _checks
from t2t_relpos.attention import dispatch
from t2t_relpos.attention.dropout import AttentionDropout
from t2t_relpos.attention.masks import combine_masks
from t2t_relpos.backend import as_tensor, as_tensors


def attend(
    query,
    key,
    value,
    key_table=None,
    value_table=None,
    *,
    mask=None,
    query_mask=None,
    key_mask=None,
    causal=False,
    query_offset=None,
    sliding_window=None,
    relative_ids=None,
    dropout=None,
    return_weights=True,
    rematerialize=None,
    implementation=None,
):
    """Returns attention whose scores and outputs also depend on relative positions.

    `softmax(q·kᵀ + q·a^Kᵀ)·(v + a^V)`, where `a[i, j]` is row `clip(j - i, -K, K) + K` of a table.
    Scores are not scaled: scale `query`. Keys, values and tables are cast to the dtype of `query`.

    Args:
        query: `[B, N, T, H]`.
        key: `[B, N, S, H]`.
        value: `[B, N, S, Hv]`.
        key_table: a^K, `[2K + 1, H]` for all heads or `[N, 2K + 1, H]`, or None. Default: None.
        value_table: a^V, `[2K + 1, Hv]` or `[N, 2K + 1, Hv]`, or None. Default: None.
        mask: bool `[T, S]`, `[B, T, S]` or `[B, N, T, S]`, axes may have size 1; True = attend. A
            fully masked query gets zeros. Default: None.
        query_mask: bool `[B, T]`. Queries that are False get zeros. Default: None.
        key_mask: bool `[B, S]`; True = attend. Default: None.
        causal: whether keys after a query are masked, by `query_offset`. Default: False.
        query_offset: key position of query 0: an int, a scalar tensor, or an int tensor `[B]` with
            a position per batch entry. Default: `S - T`.
        sliding_window: a query attends to keys at distances less than this, by `query_offset`. In
            long sequences, time is proportional to it. Default: None, no limit.
        relative_ids: table rows, int `[T, S]` or `[B, T, S]`, in `[0, 2K]`. Default: by
            `query_offset`.
        dropout: an `AttentionDropout`, or a function of the weights `[B, N, T, S]`, or None.
            Default: None.
        return_weights: False allows implementations that never compute the full weight matrix.
            Default: True.
        rematerialize: whether the gradient computes the weights again, so that memory is linear in
            length. True: at any length. False, for training, and None, for inference: above the
            limits in docs/how_it_works/dispatch.md. Default: None.
        implementation: name of a row of `dispatch.TABLE`. Default: chosen by `dispatch.select`.

    Returns:
        (outputs `[B, N, T, Hv]`, weights before dropout `[B, N, T, S]`, or None if not
        `return_weights`), in the dtype of `query`.

    Raises:
        ValueError: if `query` is not of a floating-point dtype, a mask is of a float dtype,
            `query_offset` or `relative_ids` are not integers, `sliding_window` is not a positive
            integer, tables have the wrong shape, or no implementation meets the request.

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
    names = "query", "key", "value", "key_table", "value_table", "mask", "key_mask", "relative_ids"
    tensors = as_tensors(query, key, value, key_table, value_table)
    tensors += [as_tensor(mask), as_tensor(key_mask), as_tensor(relative_ids)]
    tensors = dict(zip(names, tensors, strict=True))
    query_mask = as_tensor(query_mask)
    tensors["mask"] = combine_masks(tensors["mask"])
    _check(tensors, query_mask)
    lengths = ops.shape(tensors["query"])[2], ops.shape(tensors["key"])[2]
    ids = tensors["relative_ids"]
    seeded_dropout = dropout is None or isinstance(dropout, AttentionDropout)
    call = dispatch.AttentionCall.from_arguments(
        *lengths,
        _max_relative_position(tensors),
        causal=causal,
        query_offset=query_offset,
        sliding_window=sliding_window,
        ids_rank=None if ids is None else len(ids.shape),
        return_weights=return_weights,
        rematerialize=rematerialize,
        seeded_dropout=seeded_dropout,
        # The seed is drawn outside of the branches of `_run_first`.
        dropout=dropout.with_drawn_seed() if dropout and seeded_dropout else dropout,
        **tensors,
    )
    outputs, *weights = _run_first(dispatch.select(call, implementation), call)
    return _zero_masked_queries(outputs, weights[0] if weights else None, query_mask)


_TABLE_ADVICE = (
    "Both tables have the same number of rows R: 2 * max_relative_position + 1, or that of the "
    "`relative_ids`. They are for all heads, or have one table for each head."
)


def _check(tensors, query_mask):
    """Raises ValueError if the tensors of a call have unsupported dtypes or shapes."""
    for name, mask in (("key_mask", tensors["key_mask"]), ("query_mask", query_mask)):
        _checks.boolean(mask, name)
    sizes = _checks.check(tensors["query"], "query", "B N T H", "float")
    ids, sizes = tensors["relative_ids"], {"N": sizes.get("N")}
    for name, depth in (("key_table", "H"), ("value_table", "Hv")):
        shapes = f"R {depth} | N R {depth}"
        sizes = _checks.check(tensors[name], name, shapes, sizes=sizes, advice=_TABLE_ADVICE)
        sizes.pop(depth, None)
    rows = sizes.get("R")
    if ids is None:
        if rows is not None and rows % 2 == 0:
            raise ValueError(
                "Expected tables with an odd number of rows, R = 2 * max_relative_position + 1. "
                f"Received: {rows} rows. For other tables, pass `relative_ids`."
            )
        return
    _checks.check(ids, "relative_ids", "T S | B T S", "int")
    if rows is not None:
        _checks.in_range(ids, "`relative_ids`", 0, rows, "They are the rows of the tables.")


def _max_relative_position(tensors):
    """Returns the clipping distance K of the tables, or None without tables."""
    key_table, value_table = tensors["key_table"], tensors["value_table"]
    table = value_table if key_table is None else key_table
    return None if table is None else (table.shape[-2] - 1) // 2


def _run_first(candidates, call):
    """Returns [outputs], or [outputs, weights], of the first candidate whose condition holds."""
    first, *rest = candidates

    def run():
        outputs, weights = first.implementation.attend(call)
        results = [outputs, weights] if call.return_weights else [outputs]
        # `ops.matmul` of PyTorch and a dropout function may return another dtype.
        return [ops.cast(x, call.query.dtype) for x in results]

    if first.condition is True:
        return run()
    return ops.cond(first.condition, run, lambda: _run_first(rest, call))


def _zero_masked_queries(outputs, weights, query_mask):
    """Returns (outputs, weights or None) with zeros for queries that are False in the mask."""
    if query_mask is None:
        return outputs, weights
    exists = ops.expand_dims(ops.cast(query_mask, "bool"), (1, 3))
    outputs = ops.where(exists, outputs, 0)
    return outputs, None if weights is None else ops.where(exists, weights, 0)
