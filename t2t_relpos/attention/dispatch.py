"""Describes a call of `attend`, and chooses its implementation from a table.

All thresholds of `attend` are in this module. They were measured on CPUs. Block sizes for GPUs and
TPUs are estimates.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from t2t_relpos import _checks, backend
from t2t_relpos.attention import blockwise, flash, gather, skew
from t2t_relpos.attention.band import Distances
from t2t_relpos.attention.masks import causal_mask, combine_masks, key_padding_mask, window_mask
from t2t_relpos.attention.relative_ids import as_positions, relative_ids


class _UnknownLength:
    """A length in `explain(None)`, or a result that depends on it."""

    def _unknown(self, other):
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _unknown
    __le__ = __lt__ = __ge__ = __gt__ = __eq__ = __and__ = __rand__ = _unknown
    __hash__ = object.__hash__

    def __repr__(self):
        return "unknown"


UNKNOWN = _UnknownLength()


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
        seeded_dropout: False for a dropout that is an arbitrary function.
        share_heads: whether the tables are for all heads.
        dtype: name of the dtype of queries.
        key_dim: H.
        value_dim: Hv.
        backend: name of the Keras backend. Default: the current one.
        xla: whether XLA compiles the call. Default: as in the current graph.
        device: "cpu", "gpu" or "tpu". Default: the backend's.
        portable: whether the implementation must use standard operations only. Default: whether the
            context `portable` is entered or Keras exports to a format that needs it.
        query: as in `attend`.
        key: as in `attend`.
        value: as in `attend`.
        key_table: as in `attend`.
        value_table: as in `attend`.
        mask: bool of rank 2 or 4, broadcasts to `[B, N, T, S]`, or None.
        key_mask: as in `attend`.
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
    seeded_dropout: bool = True
    share_heads: bool = True
    dtype: str = dataclasses.field(default_factory=keras.config.floatx)
    key_dim: int = 64
    value_dim: int = 64
    backend: str = dataclasses.field(default_factory=keras.backend.backend)
    xla: bool = dataclasses.field(default_factory=lambda: backend.is_compiled_by_xla())
    device: str = dataclasses.field(default_factory=lambda: backend.device())
    portable: bool = dataclasses.field(default_factory=lambda: backend.is_portable())
    query: Any = _tensor()
    key: Any = _tensor()
    value: Any = _tensor()
    key_table: Any = _tensor()
    value_table: Any = _tensor()
    mask: Any = _tensor()
    key_mask: Any = _tensor()
    relative_ids: Any = _tensor()
    dropout: Any = _tensor()

    def __post_init__(self):
        known = {"backend": ("tensorflow", "jax", "torch"), "device": ("cpu", "gpu", "tpu")}
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise ValueError(
                    f"Expected `{name}` to be one of {', '.join(values)}. "
                    f"Received: {getattr(self, name)!r}."
                )

    @classmethod
    def from_arguments(cls, length_q, length_k, max_relative_position, **arguments):
        """Returns the call of arguments that `attend` and `explain` have in common.

        Dtypes and depths are those of the tensors, if there are any.

        Args:
            length_q: T.
            length_k: S.
            max_relative_position: K, or None.
            **arguments: other fields. `query_offset`, `sliding_window` and `rematerialize` are as
                in `attend`.

        Raises:
            ValueError: if one of these three has an unsupported value, or the backend or the device
                is unknown.
        """
        offset = _query_offset(arguments.pop("query_offset", None), length_q, length_k)
        has_offsets = len(getattr(offset, "shape", ())) == 1
        if arguments.get("query") is not None:
            arguments |= _description(**arguments)
        return cls(
            length_q,
            length_k,
            max_relative_position,
            query_offset=offset,
            offset_per_entry=arguments.pop("offset_per_entry", False) or has_offsets,
            sliding_window=_sliding_window(arguments.pop("sliding_window", None)),
            rematerialize=_rematerialize(arguments.pop("rematerialize", None)),
            **arguments,
        )

    @property
    def distances(self):
        """The `Distances` of the tables, or None without tables."""
        k = self.max_relative_position
        return None if k is None else Distances.of(k)

    @property
    def knows_lengths(self):
        """Whether both lengths are Python ints."""
        return isinstance(self.length_q, int) and isinstance(self.length_k, int)

    @property
    def is_empty(self):
        """Whether T or S is known to be 0."""
        return 0 in [length for length in (self.length_q, self.length_k) if isinstance(length, int)]

    @property
    def num_pairs(self):
        """T·S, an int or a scalar tensor. In int32, it would overflow from 46,341 positions."""
        length_q, length_k = (
            ops.cast(x, "int64") if self.backend == "tensorflow" and ops.is_tensor(x) else x
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
        lengths, window = (self.length_q, self.length_k), self.sliding_window
        return combine_masks(
            self.mask,
            None if self.key_mask is None else key_padding_mask(self.key_mask),
            causal_mask(*lengths, self.query_offset) if self.causal else None,
            None if window is None else window_mask(*lengths, window, self.query_offset),
        )

    def pair_ids(self):
        """Returns the relative ids `[T, S]` or `[B, T, S]`."""
        if self.relative_ids is not None:
            return self.relative_ids
        lengths = self.length_q, self.length_k
        return relative_ids(*lengths, self.distances, self.query_offset)


def _description(query, value, key_table=None, value_table=None, **_):
    """Returns the fields of a call that describe its tensors."""
    return {
        "dtype": keras.backend.standardize_dtype(query.dtype),
        "key_dim": query.shape[-1],
        "value_dim": value.shape[-1],
        "share_heads": all(x is None or len(x.shape) == 2 for x in (key_table, value_table)),
    }


# All pairs at this distance are clipped, and its sum with any length fits into int32.
_FARTHEST = 2**30


def _query_offset(query_offset, length_q, length_k):
    """Returns the query offset of a call: an int if its value is known, otherwise an int32 tensor.

    Offsets of more than `_FARTHEST` are replaced by it. The results are the same.

    Args:
        query_offset: an int, a NumPy integer, a tensor, a variable, or None for `S - T`.
        length_q: T.
        length_k: S.
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


@dataclasses.dataclass(frozen=True)
class Condition:
    """A condition on a call.

    Args:
        text: description of the condition.
        function: function of an `AttentionCall` that returns a bool, or a scalar tensor if the
            result depends on unknown lengths.
    """

    text: str
    function: Callable[[AttentionCall], Any]

    def holds(self, call):
        """Returns True, False, or a scalar tensor whose value is known when the graph runs.

        In `explain(None)`, `UNKNOWN` stands for the tensor.
        """
        result = self.function(call)
        return result if ops.is_tensor(result) or result is UNKNOWN else bool(result)


@dataclasses.dataclass(frozen=True)
class BlockSizes:
    """Sizes of the blocks of `blockwise.attend`.

    Args:
        block: number of queries of a block.
        max_blocks: largest number of blocks. If the sequence needs more blocks of this size, the
            blocks are made longer.
        causal_segments: used by the scanned form only. If causal, queries are split into this many
            segments. The blocks of a segment read the keys up to its last query.
    """

    block: int
    max_blocks: int = 2**30
    causal_segments: int = 1

    def of_window(self, window):
        """Returns the size of a block in a sliding window, or without one for None."""
        return _block_of_window(self.block, window, SMALLEST_BLOCK)


@dataclasses.dataclass(frozen=True)
class FlashSizes(BlockSizes):
    """Sizes of `flash.attend`.

    Args:
        group: heads are processed in groups. The queries of a group have at most this many entries.
    """

    group: int = 2**62


@dataclasses.dataclass(frozen=True)
class GroupedBlockSizes:
    """Sizes of the blocks of `tensorflow.engine.attend_in_blocks`.

    Args:
        largest_block: largest number of queries of a block.
        keys_per_group: heads are processed in groups. The number of heads of a group times S is at
            most this.
        chunk: number of keys of a chunk of the left tail.
    """

    largest_block: int
    keys_per_group: int
    chunk: int

    def of_window(self, window):
        """Returns the largest size of a block in a sliding window, or without one for None."""
        return _block_of_window(self.largest_block, window, SMALLEST_BLOCK_TENSORFLOW_CPU)


def _block_of_window(size, window, smallest):
    """Limits the size of blocks: they read the keys in the windows of all of their queries."""
    return size if window is None else min(size, max(window - 1, smallest))


@dataclasses.dataclass(frozen=True)
class Implementation:
    """An attention implementation: a row of `TABLE`.

    Args:
        name: name of the row.
        function: dotted name of the function in `t2t_relpos.attention`.
        run: function that computes the attention: `run(call)`, or `run(call, sizes)` if there are
            `sizes`. It returns (outputs, weights or None).
        saved_matrices: number of `[T, S]` matrices per head that are saved for the gradient. It
            is used by `explain` and the documentation.
        requirements: conditions for correct results.
        preferences: further conditions for `select`. A call that names the row skips them.
        sizes: `GroupedBlockSizes` by direction, "bidirectional" or "causal"; or `BlockSizes` by
            device; or None.
    """

    name: str
    function: str
    run: Callable[..., tuple]
    saved_matrices: int
    requirements: tuple[Condition, ...]
    preferences: tuple[Condition, ...] = ()
    sizes: Mapping[str, Any] | None = None

    def attend(self, call):
        """Returns (outputs, weights or None) of an `AttentionCall`."""
        if self.sizes is None:
            return self.run(call)
        direction = "causal" if call.causal else "bidirectional"
        return self.run(call, self.sizes[direction if direction in self.sizes else call.device])

    def match(self, call, *, ignore_preferences=False):
        """Returns (the first condition that is False or None, the condition on unknown lengths).

        The condition on unknown lengths is True, or a scalar tensor.
        """
        condition_on_lengths = True
        for condition in self.requirements + (() if ignore_preferences else self.preferences):
            holds = condition.holds(call)
            if holds is False:
                return condition, True
            condition_on_lengths &= holds
        return None, condition_on_lengths


@dataclasses.dataclass(frozen=True)
class Candidate:
    """An implementation, and the condition under which it runs: True or a scalar tensor."""

    implementation: Implementation
    condition: Any = True


def select(call, implementation=None):
    """Returns the implementations of a call, as candidates in order of preference.

    Args:
        call: an `AttentionCall`.
        implementation: an `Implementation` or its name. It is the first candidate, and its
            preferences are ignored. If lengths are unknown, further candidates follow, for lengths
            that fail its requirements.

    Returns:
        A list of `Candidate`. The condition of the last one is True. The list has several entries
        only if lengths are unknown.

    Raises:
        ValueError: if `implementation` fails a requirement, or no implementation meets the call.
    """
    candidates = []
    if implementation is not None:
        if isinstance(implementation, str):
            implementation = _by_name(implementation)
        unmet, condition = implementation.match(call, ignore_preferences=True)
        if unmet is not None:
            raise ValueError(
                f"Attention implementation {implementation.name!r} requires: {unmet.text}. "
                f"Received: {call}"
            )
        candidates.append(Candidate(implementation, condition))
        if condition is True:
            return candidates
    for row in TABLE:
        unmet, condition = row.match(call)
        if unmet is None:
            candidates.append(Candidate(row, condition))
            if condition is True:
                return candidates
    raise ValueError(
        "Memory linear in length (`rematerialize=True`, `flash_attention=True` of a layer) does "
        "not support returned attention scores, explicit positions, relative ids, or a custom "
        "dropout function. Remove these arguments, or set `flash_attention=None`. Received: "
        f"{call}"
    )


def _by_name(name):
    rows = {row.name: row for row in TABLE}
    if name not in rows:
        raise ValueError(f"implementation must be one of {', '.join(rows)}. Received: {name!r}")
    return rows[name]


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The name of the chosen implementation, and the reasons against the others.

    Args:
        chosen: name of the chosen implementation. With unknown lengths, the first that the graph
            may run.
        reasons: dict of the reasons against the others, by name.
        otherwise: with unknown lengths, the names of the implementations that the graph runs for
            lengths that fail the conditions of `chosen`, in order of preference.
        conditions: with unknown lengths, dict of the conditions on lengths, by name.
        saved_matrices: number of matrices `[T, S]` per sequence and head that `chosen` saves for
            the gradient. 0: memory is linear in the length.
        skips_keys: whether `chosen` skips the keys outside of the sliding window. `S` is then the
            number of keys that a block of queries reads. False: there is no window, or it is
            applied as a mask, which does not save time.
    """

    chosen: str
    reasons: dict[str, str]
    otherwise: tuple[str, ...] = ()
    conditions: dict[str, str] = dataclasses.field(default_factory=dict)
    saved_matrices: int = 0
    skips_keys: bool = False

    def __str__(self):
        lines = []
        for name in (self.chosen, *self.otherwise):
            condition = f" if {self.conditions[name]}" if name in self.conditions else ""
            lines.append(f"{name}: {'otherwise ' if lines else ''}chosen{condition}")
        return "\n".join([*lines, *(f"{name}: {text}" for name, text in self.reasons.items())])


def explain(length_q, length_k=None, max_relative_position=16, *, dropout=0.0, **options):
    """Reports which implementation `attend` chooses, and why not the others.

    `RelativeMultiHeadAttention.explain` passes the settings of a layer.

    Args:
        length_q: number of queries T. None: unknown, as in a graph that is traced for all lengths.
        length_k: number of keys S. Default: T.
        max_relative_position: clipping distance K. None: no tables.
        dropout: rate of an `AttentionDropout`. Default: 0.0.
        **options: `causal`, `query_offset`, `sliding_window`, `return_weights` and `rematerialize`,
            as in `attend`. `offset_per_entry`: whether each batch entry has its own query offset.
            `ids_rank`: rank of `relative_ids`. `seeded_dropout`: False for a dropout function.
            `share_heads`: False for a table per head. `dtype`: that of queries, by default
            `keras.config.floatx()`. `key_dim`: H, by default 64. `value_dim`: Hv, by default
            `key_dim`. `portable`: whether to use standard operations only. `xla`: whether XLA
            compiles the call. `backend`: name of the Keras backend. `device`: "cpu", "gpu" or
            "tpu", in any case. The last four default to those of the current context. A GPU is one
            of NVIDIA, of the architecture Hopper or later.

    Returns:
        An `Explanation`: `chosen` is the name of the implementation. `reasons` maps the names of
        the others to the reasons against them. With unknown lengths, `otherwise` names the
        implementations for lengths that fail the `conditions` of `chosen`. `saved_matrices` is the
        number of matrices `[T, S]` saved for the gradient. `skips_keys` says whether keys outside
        of a sliding window take no time.

    Raises:
        ValueError: if an argument has a value that `attend` refuses, an option, the backend or the
            device is unknown, or no implementation meets the call.

    Example:
    >>> from t2t_relpos.attention import explain
    >>> explain(5000, causal=True, backend="tensorflow", xla=False, device="cpu").chosen
    'rematerialized_blocks'
    >>> in_graph = explain(None, backend="tensorflow", xla=False, device="gpu")
    >>> in_graph.chosen, in_graph.otherwise
    ('full_matrix', ('scanned_blocks',))
    """
    # The fields that are neither positional arguments nor tensors.
    names = [x.name for x in dataclasses.fields(AttentionCall) if x.kw_only and x.repr]
    for name in options:
        if name not in names:
            raise ValueError(
                f"Expected options among {', '.join(names)}. Received: {name}. A layer with "
                "`flash_attention=True` passes `rematerialize=True`."
            )
    length_k = length_q if length_k is None else length_k
    call = AttentionCall.from_arguments(
        _length(length_q, "length_q"),
        _length(length_k, "length_k"),
        None
        if max_relative_position is None
        else _checks.max_relative_position(max_relative_position),
        dropout=_checks.rate(dropout, "dropout") or None,
        **_checked_options(options),
    )
    rows = [candidate.implementation for candidate in select(call)]
    chosen, *otherwise = [row.name for row in rows]
    unmet = {row.name: row.match(call)[0] for row in TABLE if row not in rows}
    return Explanation(
        chosen,
        {name: f"requires {c.text}" if c else "after the chosen row" for name, c in unmet.items()},
        tuple(otherwise),
        {row.name: "; ".join(_texts_on_lengths(row, call)) for row in rows[:-1]},
        rows[0].saved_matrices,
        call.sliding_window is not None and rows[0].sizes is not None,
    )


def _length(length, name):
    """Returns a length as an int, or `UNKNOWN` for None."""
    if length is None:
        return UNKNOWN
    if not _checks.is_integer(length) or length < 0:
        raise ValueError(
            f"Expected `{name}` to be an integer of at least 0, or None if it is unknown. "
            f"Received: {name}={length!r}."
        )
    return int(length)


def _checked_options(options):
    """Returns the options of `explain` for an `AttentionCall`.

    Raises:
        ValueError: if one has a value that no tensors of `attend` have.
    """
    dtype = keras.backend.standardize_dtype(options.get("dtype"))
    if "float" not in dtype:
        raise ValueError(f"Expected a floating-point `dtype`. Received: {dtype}.")
    if options.get("ids_rank") not in (None, 2, 3):
        raise ValueError(
            "Expected `ids_rank` to be 2 for relative ids [T, S], 3 for [B, T, S], or None. "
            f"Received: {options['ids_rank']!r}."
        )
    key_dim = _checks.positive_int(options.get("key_dim", 64), "key_dim")
    value_dim = options.get("value_dim")
    depths = {
        "key_dim": key_dim,
        "value_dim": key_dim if value_dim is None else _checks.positive_int(value_dim, "value_dim"),
    }
    device = options.get("device")
    devices = {"device": device.lower()} if isinstance(device, str) else {}
    return options | depths | devices | {"dtype": dtype}


def _texts_on_lengths(row, call):
    """Returns the texts of a row's conditions that depend on unknown lengths."""
    conditions = row.requirements + row.preferences
    return [each.text for each in conditions if each.holds(call) is UNKNOWN]


# Largest number of positions for which `rows` gathers a table row for each pair.
LONGEST_ROWS = 64
LONGEST_ROWS_JAX_CPU = 16
# PyTorch, and JAX on a GPU.
LONGEST_ROWS_GPU = 128
# PyTorch on a CPU. `flash` is the fastest for longer sequences.
LONGEST_ROWS_TORCH_CPU, LONGEST_ROWS_TORCH_CPU_CAUSAL = 224, 128
# On a GPU, the time of PyTorch depends on the number of kernels. `flash` has the most.
LONGEST_WITHOUT_FLASH_TORCH_GPU = 1024
# TensorFlow on a CPU without XLA. Also the limits of `full_matrix` unless `rematerialize=False`.
LONGEST_ROWS_TENSORFLOW_CPU, LONGEST_ROWS_TENSORFLOW_CPU_CAUSAL = 256, 128
# Calls that blocks do not support, for example with returned weights.
LONGEST_ROWS_WITHOUT_BLOCKS = 512
# `full_matrix` is faster than `rows` from this many positions.
SHORTEST_FULL_MATRIX, SHORTEST_FULL_MATRIX_CAUSAL = 96, 40
# With `rematerialize=False`, `full_matrix` is faster than blocks up to this many positions. On an
# accelerator, it is used up to this many positions, because of its memory.
LONGEST_FULL_MATRIX, LONGEST_FULL_MATRIX_CAUSAL = 1024, 256
# `full_matrix` sums the left tail in chunks: short ones up to this many keys, then long ones.
LONGEST_SHORT_CHUNKS, SHORT_CHUNK, LONG_CHUNK = 256, 16, 32
# With a sliding window, the full matrix with a mask is used up to this many windows, which have at
# least this many positions.
LONGEST_MASKED_WINDOWS, SHORTEST_WINDOW = 4, 16
# Blocks in a sliding window have at least this many queries. Smaller ones would not save much time.
SMALLEST_BLOCK, SMALLEST_BLOCK_TENSORFLOW_CPU = 128, 64
# `saved_blocks` is used up to this many positions.
LONGEST_SAVED = 4096
# Blocks are unrolled up to this many positions. `scanned_blocks` is faster for longer sequences,
# although it computes the weights twice. There, unrolled blocks would exceed the CPU caches, or
# be too many to compile quickly.
LONGEST_UNROLLED = 1024


def full_matrix_chunk(length_k):
    """Returns the keys per chunk of the full matrix: an int, or a tensor for an unknown length."""
    if length_k is UNKNOWN:
        return length_k
    if isinstance(length_k, int):
        return SHORT_CHUNK if length_k <= LONGEST_SHORT_CHUNKS else LONG_CHUNK
    # Two ints would get a dtype that depends on `keras.config.floatx()`.
    chunks = (ops.cast(chunk, "int32") for chunk in (SHORT_CHUNK, LONG_CHUNK))
    return ops.where(length_k <= LONGEST_SHORT_CHUNKS, *chunks)


def _full_matrix_fits(call):
    """Returns whether there are table rows besides the reference and queries are the last keys."""
    length_q, length_k = call.length_q, call.length_k
    if not any(call.distances):
        return False
    fits = (length_q >= 1) & (length_k >= length_q)
    if call.query_offset is not None:
        fits &= call.query_offset == length_k - length_q
    return fits


def _mask_suits_window(call):
    """Returns whether a full matrix with a mask is as fast as blocks that skip keys."""
    if call.sliding_window is None or not _meets_block_requirements(call):
        return True
    if not (call.knows_lengths or TENSORFLOW_WITHOUT_XLA.holds(call)):
        return False
    return call.has_at_most(LONGEST_MASKED_WINDOWS * max(call.sliding_window - 1, SHORTEST_WINDOW))


def _meets_block_requirements(call):
    return all(condition.holds(call) for condition in BLOCK_REQUIREMENTS)


def _within_full_matrix_range(call):
    if call.device != "cpu":
        return call.has_at_most(LONGEST_FULL_MATRIX)
    left, right = call.distances
    causal = call.causal and left > 1
    band = left if causal else max(left, right) + full_matrix_chunk(call.length_k)
    shortest = SHORTEST_FULL_MATRIX_CAUSAL if causal else SHORTEST_FULL_MATRIX
    longest = LONGEST_ROWS_TENSORFLOW_CPU_CAUSAL if call.causal else LONGEST_ROWS_TENSORFLOW_CPU
    if call.rematerialize is False:
        longest = LONGEST_FULL_MATRIX_CAUSAL if call.causal else LONGEST_FULL_MATRIX
    is_long = (call.length_q >= band) & (call.num_pairs >= shortest**2)
    return is_long & call.has_at_most(longest)


def _within_rows_range(call):
    if not _meets_block_requirements(call):
        return call.knows_lengths and call.has_at_most(LONGEST_ROWS_WITHOUT_BLOCKS)
    if TENSORFLOW_ON_CPU.holds(call):
        longest = LONGEST_ROWS_TENSORFLOW_CPU_CAUSAL if call.causal else LONGEST_ROWS_TENSORFLOW_CPU
        return call.has_at_most(longest)
    return call.knows_lengths and call.has_at_most(_longest_rows(call))


def _longest_rows(call):
    """Returns the largest number of positions for `rows`, except for TensorFlow on a CPU."""
    if call.backend == "torch" and call.device == "cpu":
        return LONGEST_ROWS_TORCH_CPU_CAUSAL if call.causal else LONGEST_ROWS_TORCH_CPU
    if call.backend == "jax" and call.device == "cpu":
        return LONGEST_ROWS_JAX_CPU
    if call.backend != "tensorflow" and call.device == "gpu":
        return LONGEST_ROWS_GPU
    return LONGEST_ROWS


def _run_full_matrix(call):
    from t2t_relpos.attention.tensorflow import engine

    return engine.attend_in_one_block(call, full_matrix_chunk(call.length_k)), None


def _run_tensorflow_blocks(call, sizes, *, save_weights):
    from t2t_relpos.attention.tensorflow import engine

    return engine.attend_in_blocks(call, sizes, save_weights=save_weights), None


def _run_keras_blocks(call, sizes, *, unrolled):
    return blockwise.attend(call, sizes, unrolled=unrolled), None


def _run_flash(call, sizes):
    return flash.attend(call, sizes, backend.flash_kernel), None


def _is_self_attention(call):
    if not (call.knows_lengths and call.length_q == call.length_k > 0):
        return False
    return call.query_offset is None or (
        isinstance(call.query_offset, int) and not call.query_offset
    )


class FlashKernel(NamedTuple):
    """What a flash-attention kernel supports.

    Args:
        dtypes: names of dtypes.
        multiple: depths are multiples of this.
        largest_depth: largest depth, with the features for masks.
    """

    dtypes: tuple
    multiple: int = 1
    largest_depth: int = 2**30


FLASH_KERNELS = {
    ("torch", "cpu"): FlashKernel(("float16", "bfloat16", "float32", "float64")),
    ("torch", "gpu"): FlashKernel(("float16", "bfloat16", "float32"), multiple=8),
    ("jax", "gpu"): FlashKernel(("float16", "bfloat16"), multiple=8, largest_depth=256),
}


def _has_flash_kernel(call):
    # Calls of `explain` have no tensors, and may be for another machine.
    is_known = call.query is not None
    has_kernel = (call.backend, call.device) in FLASH_KERNELS
    return has_kernel and (not is_known or backend.flash_kernel.has_kernel(call.query))


def _suits_flash_kernel(call):
    if not _has_flash_kernel(call):
        return True
    kernel, is_known = FLASH_KERNELS[call.backend, call.device], call.query is not None
    is_masked = call.mask is not None or call.key_mask is not None
    depth = call.key_dim + is_masked * flash.MASK_FEATURES
    return (
        call.key_dim == call.value_dim
        and call.dtype in kernel.dtypes
        and depth % kernel.multiple == 0
        and depth <= kernel.largest_depth
        # The GPU of this process may be an older one.
        and (not is_known or backend.flash_kernel.supports(call.query, depth))
    )


def _is_long_for_flash(call):
    is_torch_on_gpu = call.backend == "torch" and call.device != "cpu"
    longest = LONGEST_WITHOUT_FLASH_TORCH_GPU if is_torch_on_gpu else _longest_rows(call)
    return call.rematerialize is True or not call.has_at_most(longest)


def _masks_keys_only(call):
    is_for_keys = call.mask is None or flash.is_key_mask(call.mask)
    return is_for_keys and call.sliding_window is None


_HAS_TABLE = Condition("a relative table", lambda call: call.max_relative_position is not None)
QUADRATIC_MEMORY_ALLOWED = Condition(
    "`rematerialize` is not True, unless `portable` (memory is quadratic) or a length is 0",
    lambda call: call.rematerialize is not True or call.portable or call.is_empty,
)
_ONE_OFFSET = Condition(
    "no `relative_ids`, and one query offset for the batch",
    lambda call: call.ids_rank is None and not call.offset_per_entry,
)
BLOCK_REQUIREMENTS = (
    _ONE_OFFSET,
    Condition("no returned weights", lambda call: not call.return_weights),
    Condition("dropout is None or an `AttentionDropout`", lambda call: call.seeded_dropout),
    Condition("not `portable`", lambda call: not call.portable),
)
TENSORFLOW_ON_CPU = Condition(
    "TensorFlow on a CPU without XLA",
    lambda call: call.backend == "tensorflow" and not call.xla and call.device == "cpu",
)
TENSORFLOW_WITHOUT_XLA = Condition(
    "TensorFlow without XLA", lambda call: call.backend == "tensorflow" and not call.xla
)
_TENSORFLOW_REQUIREMENTS = (TENSORFLOW_ON_CPU, _HAS_TABLE, *BLOCK_REQUIREMENTS)
HAS_FLASH_KERNEL = Condition(
    "PyTorch on a CPU or an NVIDIA GPU, or JAX on an NVIDIA GPU", _has_flash_kernel
)
_NOT_TRANSFORMED = Condition(
    "no transform of `torch.func`", lambda call: not backend.is_transformed()
)
SUITS_FLASH_KERNEL = Condition(
    "one depth of keys and values; on a GPU a multiple of 8, and not float64; on JAX a 16-bit type "
    "and a depth that cuDNN supports",
    _suits_flash_kernel,
)
_SUITS_WINDOW = Condition(
    f"no sliding window, or one for up to {LONGEST_MASKED_WINDOWS} windows (of at least "
    f"{SHORTEST_WINDOW} positions), or failed block requirements",
    _mask_suits_window,
)

TABLE = (
    Implementation(
        "without_tables",
        "gather.attend_without_tables",
        gather.attend_without_tables,
        saved_matrices=3,
        requirements=(
            Condition("no relative tables", lambda call: call.max_relative_position is None),
            QUADRATIC_MEMORY_ALLOWED,
        ),
        preferences=(_SUITS_WINDOW,),
    ),
    Implementation(
        "full_matrix",
        "tensorflow.engine.attend_in_one_block",
        _run_full_matrix,
        saved_matrices=2,
        requirements=(
            TENSORFLOW_WITHOUT_XLA,
            _HAS_TABLE,
            *BLOCK_REQUIREMENTS,
            Condition("K >= 1; S >= T >= 1; query offset S - T", _full_matrix_fits),
            QUADRATIC_MEMORY_ALLOWED,
        ),
        preferences=(
            Condition(
                f"{SHORTEST_FULL_MATRIX} to {LONGEST_FULL_MATRIX} positions "
                f"(causal: {SHORTEST_FULL_MATRIX_CAUSAL} to {LONGEST_FULL_MATRIX_CAUSAL}, with "
                f"K = 1 from {SHORTEST_FULL_MATRIX}), if `rematerialize` is None up to "
                f"{LONGEST_ROWS_TENSORFLOW_CPU} (causal: {LONGEST_ROWS_TENSORFLOW_CPU_CAUSAL}), "
                "and T >= K + chunk (causal and K > 1: T >= K); on a GPU up to "
                f"{LONGEST_FULL_MATRIX} positions",
                _within_full_matrix_range,
            ),
            _SUITS_WINDOW,
        ),
    ),
    Implementation(
        "rows",
        "gather.attend_by_rows",
        gather.attend_by_rows,
        saved_matrices=3,
        requirements=(
            _HAS_TABLE,
            Condition(
                "the same ids for all batch entries",
                lambda call: call.ids_rank != 3 and not call.offset_per_entry,
            ),
            QUADRATIC_MEMORY_ALLOWED,
        ),
        preferences=(
            Condition(
                f"up to {LONGEST_ROWS_WITHOUT_BLOCKS} positions if the block requirements fail; "
                f"otherwise {LONGEST_ROWS_TENSORFLOW_CPU} (causal: "
                f"{LONGEST_ROWS_TENSORFLOW_CPU_CAUSAL}) on TensorFlow on a CPU without XLA; "
                f"{LONGEST_ROWS_TORCH_CPU} (causal: {LONGEST_ROWS_TORCH_CPU_CAUSAL}) on PyTorch on "
                f"a CPU, {LONGEST_ROWS_JAX_CPU} on JAX on a CPU, {LONGEST_ROWS_GPU} on both on a "
                f"GPU, otherwise {LONGEST_ROWS}; except for TensorFlow on a CPU, only known "
                "lengths",
                _within_rows_range,
            ),
            _SUITS_WINDOW,
        ),
    ),
    Implementation(
        "saved_blocks",
        "tensorflow.engine.attend_in_blocks",
        functools.partial(_run_tensorflow_blocks, save_weights=True),
        saved_matrices=1,
        requirements=(*_TENSORFLOW_REQUIREMENTS, QUADRATIC_MEMORY_ALLOWED),
        preferences=(
            Condition("`rematerialize` False", lambda call: call.rematerialize is False),
            Condition(
                f"up to {LONGEST_SAVED} positions", lambda call: call.has_at_most(LONGEST_SAVED)
            ),
        ),
        sizes={
            "bidirectional": GroupedBlockSizes(largest_block=512, keys_per_group=16384, chunk=64),
            "causal": GroupedBlockSizes(largest_block=256, keys_per_group=16384, chunk=64),
        },
    ),
    Implementation(
        "rematerialized_blocks",
        "tensorflow.engine.attend_in_blocks",
        functools.partial(_run_tensorflow_blocks, save_weights=False),
        saved_matrices=0,
        requirements=_TENSORFLOW_REQUIREMENTS,
        sizes={
            "bidirectional": GroupedBlockSizes(largest_block=256, keys_per_group=4096, chunk=32),
            "causal": GroupedBlockSizes(largest_block=128, keys_per_group=4096, chunk=32),
        },
    ),
    Implementation(
        "flash",
        "flash.attend",
        _run_flash,
        saved_matrices=0,
        requirements=(
            HAS_FLASH_KERNEL,
            _NOT_TRANSFORMED,
            _HAS_TABLE,
            *BLOCK_REQUIREMENTS,
            Condition("known lengths, T = S > 0, query offset 0", _is_self_attention),
            SUITS_FLASH_KERNEL,
            Condition("tables for all heads", lambda call: call.share_heads),
            Condition("masks of keys only, no sliding window", _masks_keys_only),
            Condition("no dropout", lambda call: call.dropout is None),
        ),
        preferences=(
            Condition(
                f"`rematerialize` True, or more than {LONGEST_ROWS_TORCH_CPU} positions (causal: "
                f"{LONGEST_ROWS_TORCH_CPU_CAUSAL}) on a CPU, {LONGEST_ROWS_GPU} on "
                f"JAX on a GPU, {LONGEST_WITHOUT_FLASH_TORCH_GPU} on PyTorch on a GPU",
                _is_long_for_flash,
            ),
        ),
        sizes={"cpu": FlashSizes(32, group=2**20), "gpu": FlashSizes(64)},
    ),
    Implementation(
        "unrolled_blocks",
        "blockwise.attend",
        functools.partial(_run_keras_blocks, unrolled=True),
        saved_matrices=1,
        requirements=(
            *BLOCK_REQUIREMENTS,
            Condition("known lengths", lambda call: call.knows_lengths),
            QUADRATIC_MEMORY_ALLOWED,
        ),
        preferences=(
            Condition(
                f"up to {LONGEST_UNROLLED} positions",
                lambda call: call.has_at_most(LONGEST_UNROLLED),
            ),
        ),
        sizes={
            "cpu": BlockSizes(64, max_blocks=8),
            "gpu": BlockSizes(512, max_blocks=8),
            "tpu": BlockSizes(512, max_blocks=8),
        },
    ),
    Implementation(
        "scanned_blocks",
        "blockwise.attend",
        functools.partial(_run_keras_blocks, unrolled=False),
        saved_matrices=0,
        requirements=BLOCK_REQUIREMENTS,
        sizes={
            "cpu": BlockSizes(128, causal_segments=3),
            "gpu": BlockSizes(512, causal_segments=3),
            "tpu": BlockSizes(512, causal_segments=3),
        },
    ),
    Implementation(
        "band",
        "skew.attend_by_band",
        skew.attend_by_band,
        saved_matrices=3,
        requirements=(_HAS_TABLE, _ONE_OFFSET, QUADRATIC_MEMORY_ALLOWED),
    ),
    Implementation(
        "by_id",
        "gather.attend_by_id",
        gather.attend_by_id,
        saved_matrices=3,
        requirements=(_HAS_TABLE, QUADRATIC_MEMORY_ALLOWED),
    ),
)
