"""The record of a call of `attend`, which `dispatch` chooses by and implementations read."""

import contextlib
import contextvars
import dataclasses
from typing import Any

import keras
import numpy as np

from t2t_relpos import _checks, backend
from t2t_relpos.attention.band import FARTHEST, Distances, resize_table, with_zero_rows
from t2t_relpos.attention.dropout import SeededDropout
from t2t_relpos.attention.masks import conjunction, make_attention_mask
from t2t_relpos.attention.relative_ids import as_positions, relative_ids
from t2t_relpos.backend import ops

# The number of the context `lengths_up_to`, or None.
_LONGEST = contextvars.ContextVar("longest", default=None)


@contextlib.contextmanager
def lengths_up_to(longest):
    """Returns a context manager that promises unknown lengths T and S between 1 and `longest`.

    A graph of unknown lengths has a branch for each implementation that they may select. Those for
    longer sequences are then left out, and one of `rows` and `full_matrix` where both take about
    the same time. Results are undefined for other lengths. None: no promise.
    """
    token = _LONGEST.set(longest)
    try:
        yield
    finally:
        _LONGEST.reset(token)


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
            `S - T`, in a call of `explain`.
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
        has_relative_query: whether the key table has separate queries.
        needs_log_sums: whether the log-sum-exp of the scores is returned, or needed for sinks.
        equal_lengths: whether T = S, although lengths are unknown.
        longest: as in `lengths_up_to`. Default: that of the context.
        query: as in `attend`.
        key: as in `attend`.
        value: as in `attend`.
        relative_query: queries of the key table, `[B, N, T, depth of the table]`. None: `query`.
        key_table: as in `attend`. None if an algorithm gets scores by id.
        value_table: as in `attend`. None if an algorithm returns weights by id.
        scores_by_id: products of the queries with the key table `[B, N, T, R]`, in the accumulation
            dtype, for algorithms that know no tables.
        needs_weights_by_id: whether such an algorithm returns weights by id.
        needs_total: whether it returns the sums of the weights after dropout.
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
    equal_lengths: bool = dataclasses.field(default=False, repr=False)
    longest: int | None = dataclasses.field(default_factory=lambda: _LONGEST.get(), repr=False)
    query: Any = _tensor()
    key: Any = _tensor()
    value: Any = _tensor()
    relative_query: Any = _tensor()
    key_table: Any = _tensor()
    value_table: Any = _tensor()
    scores_by_id: Any = _tensor()
    needs_weights_by_id: bool = dataclasses.field(default=False, repr=False)
    needs_total: bool = dataclasses.field(default=False, repr=False)
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

        Dtypes and depths are those of the tensors, if there are any. In causal attention, the
        tables and `max_relative_position` of the call have no distances to the right. If lengths
        and the query offset are ints, both are cut to the distances that occur, and one more on
        each side, so that no distance is clipped there.

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
        if arguments.get("equal_lengths"):
            length_k = length_q
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
        """Returns the call with tables that are cut to the distances that occur."""
        distances = self.distances
        if distances is None or self.ids_rank is not None:
            return self
        if self.causal:
            distances = distances._replace(right=0)
        is_known = self.knows_lengths and isinstance(self.query_offset, int)
        if is_known and not self.offset_per_entry:
            before = self.query_offset + self.length_q - 1
            after = self.length_k - 1 - self.query_offset
            if self.sliding_window is not None:
                before, after = (min(x, self.sliding_window - 1) for x in (before, after))
            distances = distances.cut(before, after)
        return self.with_distances(distances)

    def tensors(self):
        """Returns a dict of the tensors by field. The seed of a dropout is the entry `"seed"`.

        Lengths and the query offset may be tensors.
        """
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        tensors = {name: x for name, x in fields.items() if ops.is_tensor(x)}
        if isinstance(self.dropout, SeededDropout):
            tensors["seed"] = self.dropout.seed
        return tensors

    def with_tensors(self, tensors):
        """Returns the call with other tensors, a dict as that of `tensors`."""
        tensors = dict(tensors)
        if "seed" in tensors:
            seed = tensors.pop("seed")
            tensors["dropout"] = dataclasses.replace(self.dropout, seed=seed)
        return dataclasses.replace(self, **tensors)

    def with_distances(self, distances):
        """Returns the call with tables for other `Distances`. Larger ones repeat their end rows."""
        if distances == self.distances:
            return self
        tables = {"key_table": self.key_table, "value_table": self.value_table}
        for name, table in tables.items():
            if table is not None:
                tables[name] = resize_table(table, self.distances, distances)
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
    def has_one_offset(self):
        """Whether ids follow from one query offset, that of all batch entries."""
        return self.ids_rank is None and not self.offset_per_entry

    @property
    def has_equal_positions(self):
        """Whether query i is known to be at the position of key i, for one query or more."""
        if not (self.knows_lengths and self.length_q == self.length_k > 0):
            return False
        offset = self.query_offset
        return offset is None or (isinstance(offset, int) and not offset)

    @property
    def may_be_fully_masked(self):
        """Whether a query may have no key that it attends to."""
        if self.mask is not None or self.key_mask is not None:
            return True
        if not self.causal and self.sliding_window is None:
            return False
        offset = self.query_offset
        if not isinstance(offset, int) or offset < 0:
            return True
        if self.sliding_window is None:
            return False
        return not (self.knows_lengths and offset + self.length_q <= self.length_k)

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

        The result is a scalar tensor if a length is one, unless `longest` decides.
        """
        if self.longest is not None and self.longest <= positions:
            return True
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


def _query_offset(query_offset, length_q, length_k):
    """Returns the query offset of a call: an int if its value is known, otherwise an int32 tensor.

    Offsets of more than `FARTHEST` are replaced by it. The results are the same.
    """
    _checks.query_offset(query_offset)
    if query_offset is None:
        return 0 if length_k is length_q else length_k - length_q
    if isinstance(query_offset, (int, np.integer)):
        return max(-FARTHEST, min(FARTHEST, int(query_offset)))
    if not hasattr(query_offset, "shape"):  # a symbolic length of JAX
        return query_offset
    offset = as_positions(backend.as_tensor(query_offset), "query_offset")
    return ops.clip(offset, -FARTHEST, FARTHEST)


def _sliding_window(window):
    """Returns the sliding window of a call, or None. Sums of twice the window fit into int32."""
    if window is None:
        return None
    return min(_checks.positive_int(window, "sliding_window"), FARTHEST // 2)


def _rematerialize(value):
    """Returns True, False or None."""
    if value is None or isinstance(value, (bool, np.bool_)):
        return None if value is None else bool(value)
    raise ValueError(f"Expected `rematerialize` to be True, False or None. Received: {value!r}.")
