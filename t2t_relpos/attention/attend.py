"""The entry point of relative attention, and the record of a call that implementations read.

Relations, images and local blocks use `gather` and `t2t_variants`. Decoding steps of `generate` use
`t2t_relpos.models.folded.transformer`.
"""

import dataclasses
import math
from typing import Any

import keras
import numpy as np

from t2t_relpos import _checks, backend
from t2t_relpos.attention import dispatch
from t2t_relpos.attention.band import Distances, cut_table, with_zero_rows
from t2t_relpos.attention.dropout import AttentionDropout, SeededDropout
from t2t_relpos.attention.masks import conjunction, make_attention_mask
from t2t_relpos.attention.relative_ids import as_positions, relative_ids
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
            the queries has the keys of head `n // (N / G)`, which are not repeated in memory.
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


@backend.untraced(_types_of_results)
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
    lengths = ops.shape(tensors["query"])[2], ops.shape(tensors["key"])[2]
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
    """Returns the results of the first candidate whose condition holds.

    They are a list: outputs; weights, if they are returned; log-sum-exps, if they are needed.
    """
    first, *rest = candidates

    def run():
        found = first.implementation.attend(call)
        results = [found.outputs, found.weights] if call.return_weights else [found.outputs]
        # `ops.matmul` of PyTorch and a dropout function may return another dtype.
        results = [ops.cast(x, call.query.dtype) for x in results]
        return [*results, found.log_sums] if call.needs_log_sums else results

    if first.condition is True:
        return run()
    return ops.cond(first.condition, run, lambda: _run_first(rest, call))


_BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}


def _tensor():
    return dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True)
class AttentionCall:
    """A call of `attend` with the defaults resolved.

    `attend` makes it, `select` chooses an implementation by it, and the implementation computes it.
    `explain` makes one without tensors.

    Args:
        length_q: number of queries T, an int or a scalar tensor.
        length_k: number of keys S, an int or a scalar tensor.
        max_relative_position: K, or (left, right). None: no tables.
        causal: whether keys after a query are masked, without an explicit mask.
        query_offset: key position of query 0, an int, a scalar tensor or an int tensor `[B]`. None:
            `S - T`, in a call without tensors.
        sliding_window: a query attends to keys at distances less than this. None: no limit.
        offset_per_entry: whether there is a query offset for each batch entry.
        ids_rank: rank of the argument `relative_ids`, 2 or 3. None: ids follow from the offset.
        return_weights: whether all attention weights are returned.
        rematerialize: as in `attend`.
        has_bias: whether a bias is added to the scores.
        seeded_dropout: False for a dropout that is an arbitrary function.
        dtype: name of the dtype of queries.
        key_dim: H.
        value_dim: Hv.
        backend: name of the Keras backend. Default: the current one.
        xla: whether XLA compiles the call. Default: as in the current graph.
        device: "cpu", "gpu" or "tpu". Default: the backend's.
        portable: whether the implementation must use standard operations only. Default: whether the
            context `portable` is entered or Keras exports to a format that needs it.
        grouped_queries: whether there are fewer heads of keys than of queries.
        has_relative_query: whether the key table has queries of its own.
        needs_log_sums: whether the log-sum-exp of the scores is returned, or needed for sinks.
        query: as in `attend`.
        key: as in `attend`.
        value: as in `attend`.
        relative_query: queries of the key table, `[B, N, T, depth of the table]`. None: `query`.
        key_table: as in `attend`. None if an algorithm gets scores by id.
        value_table: as in `attend`. None if an algorithm returns weights by id.
        scores_by_id: products of the queries with the key table `[B, N, T, R]`, in the accumulation
            dtype, for algorithms that know no tables.
        needs_weights_by_id: whether such an algorithm returns weights by id.
        mask: bool of rank 2 or 4, broadcasts to `[B, N, T, S]`, or None.
        key_mask: as in `attend`.
        bias: as `mask`, of the dtype of queries.
        relative_ids: as in `attend`.
        dropout: a `SeededDropout`, a function of the weights, or None.

    Raises:
        ValueError: if the backend or the device is unknown.
    """

    length_q: Any
    length_k: Any
    max_relative_position: Any
    _: dataclasses.KW_ONLY
    causal: bool = False
    query_offset: Any = None
    sliding_window: int | None = None
    offset_per_entry: bool = False
    ids_rank: int | None = None
    return_weights: bool = False
    rematerialize: bool | None = None
    has_bias: bool = False
    seeded_dropout: bool = True
    dtype: str = dataclasses.field(default_factory=keras.config.floatx)
    key_dim: int = 64
    value_dim: int = 64
    backend: str = dataclasses.field(default_factory=keras.backend.backend)
    xla: bool = dataclasses.field(default_factory=lambda: backend.is_compiled_by_xla())
    device: str = dataclasses.field(default_factory=lambda: backend.device())
    portable: bool = dataclasses.field(default_factory=lambda: backend.is_portable())
    grouped_queries: bool = False
    has_relative_query: bool = False
    needs_log_sums: bool = False
    query: Any = _tensor()
    key: Any = _tensor()
    value: Any = _tensor()
    relative_query: Any = _tensor()
    key_table: Any = _tensor()
    value_table: Any = _tensor()
    scores_by_id: Any = _tensor()
    needs_weights_by_id: bool = dataclasses.field(default=False, repr=False)
    mask: Any = _tensor()
    key_mask: Any = _tensor()
    bias: Any = _tensor()
    relative_ids: Any = _tensor()
    dropout: Any = _tensor()

    def __post_init__(self):
        known = {"backend": tuple(_BACKENDS), "device": ("cpu", "gpu", "tpu")}
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise ValueError(
                    f"Expected `{name}` to be one of {', '.join(values)}. "
                    f"Received: {getattr(self, name)!r}."
                )

    @classmethod
    def from_arguments(cls, length_q, length_k, max_relative_position, **arguments):
        """Returns the call of arguments that `attend` and `explain` have in common.

        Dtypes and depths are those of the tensors, if there are any. If lengths and the query
        offset are ints, the tables and `max_relative_position` of the call are cut to the distances
        that occur, and one more on each side, so that no distance is clipped there. Causal
        attention has no distances to the right.

        Args:
            length_q: T.
            length_k: S.
            max_relative_position: K, or (left, right). None: no tables.
            **arguments: other fields. `beyond`, `query_offset`, `sliding_window` and
                `rematerialize` are as in `attend`.

        Raises:
            ValueError: if one of these four has an unsupported value, or the backend or the device
                is unknown.
        """
        max_relative_position, tables = _tables_beyond(
            arguments.pop("beyond", "clip"), max_relative_position, arguments
        )
        arguments |= tables
        offset = _query_offset(arguments.pop("query_offset", None), length_q, length_k)
        has_offsets = len(getattr(offset, "shape", ())) == 1
        if arguments.get("query") is not None:
            arguments |= _description(**arguments)
        call = cls(
            length_q,
            length_k,
            max_relative_position,
            query_offset=offset,
            offset_per_entry=arguments.pop("offset_per_entry", False) or has_offsets,
            sliding_window=_sliding_window(arguments.pop("sliding_window", None)),
            rematerialize=_rematerialize(arguments.pop("rematerialize", None)),
            **arguments,
        )
        return call._without_unused_rows()

    def _without_unused_rows(self):
        """Returns the call with the table rows of `from_arguments`."""
        is_known = self.knows_lengths and isinstance(self.query_offset, int)
        if self.distances is None or not (is_known and dispatch.ONE_OFFSET.holds(self)):
            return self
        before = self.query_offset + self.length_q - 1
        after = 0 if self.causal else self.length_k - 1 - self.query_offset
        if self.sliding_window is not None:
            before, after = (min(x, self.sliding_window - 1) for x in (before, after))
        distances, tables = self.distances.cut(before, after), {}
        if self.causal:
            distances = distances._replace(right=0)
        if distances == self.distances:
            return self
        for name in ("key_table", "value_table"):
            table = getattr(self, name)
            tables[name] = None if table is None else cut_table(table, self.distances, distances)
        return dataclasses.replace(self, max_relative_position=tuple(distances), **tables)

    @property
    def platform(self):
        """Name of the backend, the compiler and the device, as `dispatch` lists them."""
        compiler = f" with{'' if self.xla else 'out'} XLA" if self.backend == "tensorflow" else ""
        return f"{_BACKENDS[self.backend]}{compiler} on a {self.device.upper()}"

    @property
    def distances(self):
        """The `Distances` of the tables, or None without tables."""
        k = self.max_relative_position
        return None if k is None else Distances.of(k)

    @property
    def table_query(self):
        """The queries that are multiplied with the key table."""
        return self.query if self.relative_query is None else self.relative_query

    @property
    def knows_lengths(self):
        """Whether both lengths are Python ints."""
        return isinstance(self.length_q, int) and isinstance(self.length_k, int)

    @property
    def has_equal_positions(self):
        """Whether query i is known to be at the position of key i, for one query or more."""
        if not (self.knows_lengths and self.length_q == self.length_k > 0):
            return False
        offset = self.query_offset
        return offset is None or (isinstance(offset, int) and not offset)

    @property
    def is_empty(self):
        """Whether T or S is known to be 0."""
        return 0 in [length for length in (self.length_q, self.length_k) if isinstance(length, int)]

    @property
    def num_pairs(self):
        """T·S, an int or a scalar tensor. In int32, it would overflow from 46,341 positions."""
        length_q, length_k = (
            ops.cast(x, backend.LARGE_INDEX_DTYPE) if ops.is_tensor(x) else x
            for x in (self.length_q, self.length_k)
        )
        return length_q * length_k

    def has_at_most(self, positions):
        """Returns whether the score matrix has at most `positions ** 2` entries.

        The result is a scalar tensor if a length is one.
        """
        return self.num_pairs <= positions**2

    def combined_mask(self):
        """Returns the conjunction of all masks, broadcastable to `[B, N, T, S]`, or None."""
        key_mask = None if self.key_mask is None else ops.expand_dims(self.key_mask, (1, 2))
        of_positions = make_attention_mask(
            (self.length_q, self.length_k),
            causal=self.causal,
            window=self.sliding_window,
            query_offset=self.query_offset,
        )
        return conjunction(self.mask, key_mask, of_positions)

    def pair_ids(self):
        """Returns the relative ids `[T, S]` or `[B, T, S]`."""
        if self.relative_ids is not None:
            return ops.cast(self.relative_ids, "int32")
        lengths = self.length_q, self.length_k
        return relative_ids(*lengths, self.distances, self.query_offset)


def _description(query, value, key=None, relative_query=None, **_):
    """Returns the fields of a call that describe its tensors."""
    return {
        "dtype": keras.backend.standardize_dtype(query.dtype),
        "key_dim": query.shape[-1],
        "value_dim": value.shape[-1],
        "grouped_queries": key is not None and key.shape[1] != query.shape[1],
        "has_relative_query": relative_query is not None,
    }


def _tables_beyond(beyond, max_relative_position, arguments):
    """Returns (distances, tables by name), with rows of zeros at both ends if `beyond` is "zero".

    `arguments` are fields of a call.
    """
    if beyond not in ("clip", "zero"):
        raise ValueError(f"Expected `beyond` to be 'clip' or 'zero'. Received: {beyond!r}.")
    if beyond == "clip" or max_relative_position is None:
        return max_relative_position, {}
    if arguments.get("ids_rank") is not None:
        raise ValueError(
            "Expected `beyond='zero'` without `relative_ids`, which give each pair a row. "
            "Received: both. Leave `beyond` out, or add a row of zeros to the tables."
        )
    names = [name for name in ("key_table", "value_table") if arguments.get(name) is not None]
    distances = Distances(*(x + 1 for x in Distances.of(max_relative_position)))
    return distances, {name: with_zero_rows(arguments[name]) for name in names}


# All pairs at this distance are clipped, and its sum with any length fits into int32.
_FARTHEST = 2**30


def _query_offset(query_offset, length_q, length_k):
    """Returns the query offset of a call: an int if its value is known, otherwise an int32 tensor.

    Offsets of more than `_FARTHEST` are replaced by it. The results are the same.
    """
    _checks.query_offset(query_offset)
    if query_offset is None:
        return length_k - length_q
    if isinstance(query_offset, (int, np.integer)):
        return max(-_FARTHEST, min(_FARTHEST, int(query_offset)))
    if not hasattr(query_offset, "shape"):  # a symbolic length of JAX
        return query_offset
    offset = as_positions(backend.as_tensor(query_offset), "query_offset")
    return ops.clip(offset, -_FARTHEST, _FARTHEST)


def _sliding_window(window):
    """Returns the sliding window of a call, or None. Sums of twice the window fit into int32."""
    if window is None:
        return None
    return min(_checks.positive_int(window, "sliding_window"), _FARTHEST // 2)


def _rematerialize(value):
    """Returns True, False or None."""
    if value is None or isinstance(value, (bool, np.bool_)):
        return None if value is None else bool(value)
    raise ValueError(f"Expected `rematerialize` to be True, False or None. Received: {value!r}.")
