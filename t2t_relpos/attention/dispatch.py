"""The table of attention implementations, and the choice among them.

The page docs/how_it_works/dispatch.md is generated from this module. Limits print themselves, so
that the rule, the page and `explain` have the same numbers. They were measured on CPUs and, for JAX
and PyTorch, on one GPU. Block sizes for GPUs and TPUs are estimates.

A `call` is an `AttentionCall` of `t2t_relpos.attention.attend`.
"""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, NamedTuple

from keras import ops

from t2t_relpos import backend
from t2t_relpos.attention import blockwise, flash, fused, gather, skew, tables
from t2t_relpos.attention.flash import MASK_FEATURES, is_key_mask


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


# Limits: numbers of positions by platform, where n positions stand for a matrix of n² entries.


class Limit(NamedTuple):
    """A number of positions for bidirectional attention, and one for causal attention."""

    bidirectional: int
    causal: int

    def __str__(self):
        same = self.causal == self.bidirectional
        return f"{self.bidirectional}" + ("" if same else f" (causal: {self.causal})")


# Names of platforms, as `AttentionCall.platform` returns them.
TENSORFLOW_CPU = "TensorFlow without XLA on a CPU"
TORCH_CPU, TORCH_GPU = "PyTorch on a CPU", "PyTorch on a GPU"
JAX_CPU, JAX_GPU = "JAX on a CPU", "JAX on a GPU"


class Limits(NamedTuple):
    """Limits by platform, and the limit of all other platforms."""

    platforms: Mapping[str, Limit]
    others: Limit

    def of(self, call):
        """Returns the limit of a call, an int."""
        limit = self.platforms.get(call.platform, self.others)
        return limit.causal if call.causal else limit.bidirectional

    def __str__(self):
        texts = [f"{limit} on {platform}" for platform, limit in self.platforms.items()]
        return ", ".join([*texts, f"otherwise {self.others}"] if texts else [str(self.others)])


# `rows` gathers a table row for each pair. Also the limit of `full_matrix` in inference on a CPU.
ROWS = Limits(
    {
        TENSORFLOW_CPU: Limit(256, 128),
        JAX_CPU: Limit(16, 16),
        TORCH_GPU: Limit(128, 128),
        JAX_GPU: Limit(128, 128),
    },
    others=Limit(64, 64),
)
# `rows`, for calls that blocks do not support, for example with returned weights.
ROWS_WITHOUT_BLOCKS = Limits({}, Limit(512, 512))
# `band`. On PyTorch on a CPU, it replaces `rows`, which reads `[T, S, H]` vectors: with few heads
# and small batches, it is several times faster.
BAND = Limits({}, Limit(224, 128))
# `full_matrix` is faster than `rows` from this many positions on a CPU.
SHORTEST_FULL_MATRIX = Limit(96, 40)
# In training on a CPU, it is faster than blocks up to this many positions. On an accelerator, it
# would need too much memory for more.
FULL_MATRIX = Limits({TENSORFLOW_CPU: Limit(1024, 256)}, Limit(1024, 1024))
# Weights of longer sequences would need too much memory.
SAVED_BLOCKS = Limits({}, Limit(4096, 4096))
# `scanned_blocks` is faster for longer sequences, although it computes the weights twice. There,
# unrolled blocks would exceed the CPU caches, or be too many to compile quickly.
UNROLLED_BLOCKS = Limits({}, Limit(1024, 1024))
# `flash` is the fastest for longer sequences. On a GPU, the time of PyTorch depends on the number
# of kernels, and `flash` has the most.
LONGEST_WITHOUT_FLASH = Limits(
    {
        TORCH_CPU: BAND.others,
        JAX_GPU: ROWS.platforms[JAX_GPU],
        TORCH_GPU: Limit(1024, 1024),
    },
    ROWS.others,
)
# `flash` reads scores by id of all queries: memory, with tables longer than this number of depths.
# Its windows take long if they have more than this share of the positions.
WIDEST_FLASH_WINDOW, LONGEST_FLASH_TABLE = 0.25, 6
# With a sliding window, the full matrix with a mask is used up to this many windows, which have at
# least this many positions.
MASKED_WINDOWS, SHORTEST_WINDOW = 4, 16


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the blocks of an implementation.

    Args:
        block: number of queries of a block, unless `max_blocks` makes it longer.
        causal_block: the same for causal attention. Default: `block`.
        smallest: a sliding window does not reduce blocks below this size. Smaller ones would not
            save much time.
        max_blocks: largest number of blocks. If the sequence needs more blocks of this size, the
            blocks are made longer.
        causal_segments: the scanned form splits queries of causal attention into this many
            segments. The blocks of a segment read the keys up to its last query.
        group: heads are processed in groups. A group has at most this many entries: of the queries
            in `flash`; heads times S in `saved_blocks` and `rematerialized_blocks`.
        chunk: number of keys of a chunk of the left tail on TensorFlow.
        long_chunk: the same for more than `short_keys` keys. Default: `chunk`.
        short_keys: see `long_chunk`.
    """

    block: int
    causal_block: int | None = None
    smallest: int = 128
    max_blocks: int = 2**30
    causal_segments: int = 1
    group: int = 2**62
    chunk: int = 0
    long_chunk: int | None = None
    short_keys: int = 2**62

    def block_of(self, call):
        """Returns the size of a block. It reads the keys in the windows of all of its queries."""
        size = self.causal_block if call.causal and self.causal_block else self.block
        window = call.sliding_window
        return size if window is None else min(size, max(window - 1, self.smallest))

    def chunk_of(self, length_k):
        """Returns the keys per chunk: an int, or a tensor for an unknown length."""
        if length_k is UNKNOWN:
            return length_k
        if self.long_chunk is None or isinstance(length_k, int):
            is_long = self.long_chunk is not None and length_k > self.short_keys
            return self.long_chunk if is_long else self.chunk
        # Two ints would get a dtype that depends on `keras.config.floatx()`.
        chunks = (ops.cast(chunk, "int32") for chunk in (self.chunk, self.long_chunk))
        return ops.where(length_k <= self.short_keys, *chunks)


_FULL_MATRIX_SIZES = Sizes(2**30, chunk=16, long_chunk=32, short_keys=256)


class FlashKernel(NamedTuple):
    """Dtypes and depths that a flash-attention kernel supports.

    Args:
        dtypes: names of dtypes.
        multiple: depths are multiples of this.
        largest_depth: largest depth, with the features for masks.
    """

    dtypes: tuple
    multiple: int = 1
    largest_depth: int = 2**30


FLASH_KERNELS = {
    TORCH_CPU: FlashKernel(("float16", "bfloat16", "float32", "float64")),
    TORCH_GPU: FlashKernel(("float16", "bfloat16", "float32"), multiple=8),
    JAX_GPU: FlashKernel(("float16", "bfloat16"), multiple=8, largest_depth=256),
}


# The fused kernel: smallest and largest depth, and a limit of max(T, S) * max(N * H, R).
FUSED_DEPTHS, LARGEST_FUSED = (16, 128), 2**31


# Conditions on a call.


@dataclasses.dataclass(frozen=True)
class Condition:
    """A condition on a call.

    Args:
        text: description of the condition.
        function: function of a call that returns a bool, or a scalar tensor if the result depends
            on unknown lengths.
    """

    text: str
    function: Callable[[Any], Any]

    def holds(self, call):
        """Returns True, False, or a scalar tensor whose value is known when the graph runs.

        In `explain(None)`, `UNKNOWN` stands for the tensor.
        """
        result = self.function(call)
        return result if ops.is_tensor(result) or result is UNKNOWN else bool(result)


def up_to(limits):
    """Returns the condition that the matrix has at most the size of a limit."""
    return Condition(f"up to {limits} positions", lambda call: call.has_at_most(limits.of(call)))


NO_TABLES = Condition("no relative tables", lambda call: call.max_relative_position is None)
HAS_TABLE = Condition("a relative table", lambda call: call.max_relative_position is not None)
QUADRATIC_MEMORY_ALLOWED = Condition(
    "`rematerialize` is not True, unless `portable` (memory is quadratic) or a length is 0",
    lambda call: call.rematerialize is not True or call.portable or call.is_empty,
)
ONE_OFFSET = Condition(
    "no `relative_ids`, and one query offset for the batch",
    lambda call: call.ids_rank is None and not call.offset_per_entry,
)
BLOCK_REQUIREMENTS = (
    ONE_OFFSET,
    Condition("no returned weights", lambda call: not call.return_weights),
    Condition("no bias", lambda call: not call.has_bias),
    Condition("dropout is None or an `AttentionDropout`", lambda call: call.seeded_dropout),
    Condition("not `portable`", lambda call: not call.portable),
)
ONE_HEAD_OF_KEYS_EACH = Condition(
    "as many heads of keys as of queries", lambda call: not call.grouped_queries
)
# Algorithms that read tables, and return outputs only.
STANDARD_RESULTS = (
    ONE_HEAD_OF_KEYS_EACH,
    Condition("no `relative_query`", lambda call: not call.has_relative_query),
    Condition("no `sinks`, no `return_log_sums`", lambda call: not call.needs_log_sums),
)
TENSORFLOW_ON_CPU = Condition(
    "TensorFlow on a CPU without XLA", lambda call: call.platform == TENSORFLOW_CPU
)
TENSORFLOW_WITHOUT_XLA = Condition(
    "TensorFlow without XLA", lambda call: call.platform.startswith("TensorFlow without XLA")
)


def _meets_block_requirements(call):
    return all(condition.holds(call) for condition in BLOCK_REQUIREMENTS)


def _suits_window(call):
    """Returns whether a masked matrix is as fast as blocks that skip keys, or the only choice."""
    if call.sliding_window is None or not _meets_block_requirements(call):
        return True
    if not (call.knows_lengths or TENSORFLOW_WITHOUT_XLA.holds(call)):
        return False
    return call.has_at_most(MASKED_WINDOWS * max(call.sliding_window - 1, SHORTEST_WINDOW))


SUITS_WINDOW = Condition(
    f"no sliding window, or one for up to {MASKED_WINDOWS} windows (of at least {SHORTEST_WINDOW} "
    "positions), or failed block requirements",
    _suits_window,
)


def _full_matrix_fits(call):
    """Returns whether there are table rows besides the reference and queries are the last keys."""
    length_q, length_k = call.length_q, call.length_k
    if not any(call.distances):
        return False
    fits = (length_q >= 1) & (length_k >= length_q)
    if call.query_offset is not None:
        fits &= call.query_offset == length_k - length_q
    return fits


def _suits_full_matrix(call):
    if call.platform != TENSORFLOW_CPU:
        return call.has_at_most(FULL_MATRIX.of(call))
    left, right = call.distances
    causal = call.causal and left > 1
    chunk = _FULL_MATRIX_SIZES.chunk_of(call.length_k)
    band = left if causal else max(left, right) + chunk
    shortest = SHORTEST_FULL_MATRIX.causal if causal else SHORTEST_FULL_MATRIX.bidirectional
    longest = (FULL_MATRIX if call.rematerialize is False else ROWS).of(call)
    is_long = (call.length_q >= band) & (call.num_pairs >= shortest**2)
    return is_long & call.has_at_most(longest)


def _suits_band(call):
    if not _meets_block_requirements(call):
        return True
    is_known = call.platform == TORCH_CPU and call.knows_lengths
    return is_known and call.has_at_most(BAND.of(call))


def _suits_rows(call):
    if not _meets_block_requirements(call):
        return call.knows_lengths and call.has_at_most(ROWS_WITHOUT_BLOCKS.of(call))
    knows_lengths = call.knows_lengths or call.platform == TENSORFLOW_CPU
    return knows_lengths and call.has_at_most(ROWS.of(call))


def _has_flash_kernel(call):
    # Calls of `explain` have no tensors, and may be for another machine.
    is_known = call.query is not None
    has_kernel = call.platform in FLASH_KERNELS
    return has_kernel and (not is_known or backend.flash_kernel.has_kernel(call.query))


def _suits_flash_kernel(call):
    if not _has_flash_kernel(call):  # which another condition reports
        return True
    kernel, is_known = FLASH_KERNELS[call.platform], call.query is not None
    is_masked = call.mask is not None or call.key_mask is not None
    depth = call.key_dim + is_masked * MASK_FEATURES
    return (
        call.key_dim == call.value_dim
        and call.dtype in kernel.dtypes
        and depth % kernel.multiple == 0
        and depth <= kernel.largest_depth
        # The GPU of this process may be an older one.
        and (not is_known or backend.flash_kernel.supports(call.query, depth))
    )


def _has_flash_positions(call):
    if call.backend == "jax":  # whose kernel is causal
        return call.has_equal_positions
    has_offset = isinstance(call.query_offset, (int, NoneType))
    return call.knows_lengths and not call.is_empty and has_offset


def _is_long_for_flash(call):
    longest = LONGEST_WITHOUT_FLASH.of(call)
    return call.rematerialize is True or not call.has_at_most(longest)


def _is_narrow_for_flash(call):
    if call.distances is None:
        return True
    left, right = call.distances
    width = left + (0 if call.causal else right)
    is_narrow = call.platform != TORCH_CPU or width <= WIDEST_FLASH_WINDOW * call.length_q
    return is_narrow and width < LONGEST_FLASH_TABLE * max(call.key_dim, call.value_dim)


MASKS_KEYS_ONLY = Condition(
    "masks of keys only, no sliding window",
    lambda call: (call.mask is None or is_key_mask(call.mask)) and call.sliding_window is None,
)
NO_DROPOUT = Condition("no dropout", lambda call: call.dropout is None)
NO_TRANSFORM = Condition("no transform of `torch.func`", lambda call: not backend.is_transformed())


def _has_fused_kernel(call):
    # Calls of `explain` have no tensors. The GPU is then as `explain` says, and has Triton.
    if call.query is None:
        return call.platform == TORCH_GPU
    return backend.has_fused_kernel(call.query)


def _suits_fused_kernel(call):
    depth, (smallest, largest) = call.key_dim, FUSED_DEPTHS
    has_depth = smallest <= depth <= largest and call.value_dim == depth
    return has_depth and call.dtype in ("float16", "bfloat16", "float32")


def _has_fused_positions(call):
    if not (call.knows_lengths and isinstance(call.query_offset, (int, NoneType))):
        return False
    # Indices into the vectors and the array by row of a head are int32.
    heads = 1 if call.query is None else call.query.shape[1]
    longest = max(call.length_q, call.length_k)
    size = max(heads * call.key_dim, call.distances.num_ids if call.distances else 1)
    return min(call.length_q, call.length_k) > 0 and longest * size < LARGEST_FUSED


def _has_small_mask(call):
    masks_keys = not call.causal and (call.mask is None or is_key_mask(call.mask))
    return call.rematerialize is not True or masks_keys or gather.needs_no_causal_mask(call)


HAS_FUSED_KERNEL = Condition(
    "PyTorch on an NVIDIA GPU of the architecture Ampere or later, and Triton", _has_fused_kernel
)
HAS_FLASH_KERNEL = Condition(
    "PyTorch on a CPU or an NVIDIA GPU, or JAX on an NVIDIA GPU", _has_flash_kernel
)
SUITS_FLASH_KERNEL = Condition(
    "one depth of keys and values; on a GPU a multiple of 8, and not float64; on JAX a 16-bit type "
    "and a depth that cuDNN supports",
    _suits_flash_kernel,
)


# The table, in order of preference: `select` takes the first row whose conditions hold.


@dataclasses.dataclass(frozen=True)
class Implementation:
    """An attention implementation: a row of `TABLE`.

    Args:
        name: name of the row.
        function: called with an `AttentionCall`, the `Sizes` if there are any, and `options`. It
            returns `tables.Results`. A function that requires TensorFlow is given by its dotted
            name in `t2t_relpos.attention`.
        saved_matrices: number of `[T, S]` matrices per head that are saved for the gradient, for
            `explain` and the documentation.
        requirements: conditions for correct results.
        preferences: further conditions for `select`. A call that names the row skips them.
        sizes: `Sizes` by device, or None.
        options: keyword arguments of the function.
        reads_tables: whether the function gets tables, and not scores by id (see `tables`).
    """

    name: str
    function: str | Callable[..., tuple]
    saved_matrices: int
    requirements: tuple[Condition, ...]
    preferences: tuple[Condition, ...] = ()
    sizes: Mapping[str, Sizes] | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    reads_tables: bool = False

    def attend(self, call):
        """Returns the `Results` of a call, with the relative values."""
        function = self.function
        if isinstance(function, str):
            module, _, name = function.rpartition(".")
            function = getattr(importlib.import_module(f"t2t_relpos.attention.{module}"), name)
        sizes = [] if self.sizes is None else [self.sizes[call.device]]
        compute = lambda call: function(call, *sizes, **self.options)
        return compute(call) if self.reads_tables else tables.attend_by_scores(compute, call)

    def match(self, call, *, ignore_preferences=False):
        """Returns (the first condition that fails, or None; the condition on unknown lengths).

        The condition on unknown lengths is True, or a scalar tensor.
        """
        condition_on_lengths = True
        for condition in self.requirements + (() if ignore_preferences else self.preferences):
            holds = condition.holds(call)
            if holds is False:
                return condition, True
            condition_on_lengths &= holds
        return None, condition_on_lengths


TABLE = (
    Implementation(
        "scaled_dot_product_attention",
        gather.attend_by_backend,
        saved_matrices=0,
        requirements=(
            Condition("PyTorch", lambda call: call.backend == "torch"),
            NO_TRANSFORM,
            NO_TABLES,
            *STANDARD_RESULTS,
            *BLOCK_REQUIREMENTS,
            NO_DROPOUT,
            Condition(
                "known lengths of at least 1", lambda call: call.knows_lengths and not call.is_empty
            ),
            Condition("no sliding window", lambda call: call.sliding_window is None),
            Condition("one depth of keys and values", lambda call: call.key_dim == call.value_dim),
            Condition(
                "`rematerialize` is not True, or masks of keys only, or causality as the only "
                "mask, with T = S",
                _has_small_mask,
            ),
        ),
    ),
    Implementation(
        "without_tables",
        gather.attend_without_tables,
        saved_matrices=3,
        requirements=(
            NO_TABLES,
            QUADRATIC_MEMORY_ALLOWED,
        ),
        preferences=(SUITS_WINDOW,),
    ),
    Implementation(
        "full_matrix",
        "tensorflow.engine.attend_in_one_block",
        reads_tables=True,
        saved_matrices=2,
        requirements=(
            TENSORFLOW_WITHOUT_XLA,
            HAS_TABLE,
            *STANDARD_RESULTS,
            *BLOCK_REQUIREMENTS,
            Condition("K >= 1; S >= T >= 1; query offset S - T", _full_matrix_fits),
            QUADRATIC_MEMORY_ALLOWED,
        ),
        preferences=(
            Condition(
                f"up to {FULL_MATRIX} positions, on a CPU with `rematerialize` None up to "
                f"{ROWS.platforms[TENSORFLOW_CPU]}; on a CPU at least {SHORTEST_FULL_MATRIX} "
                "positions and T >= K + chunk (causal and K > 1: T >= K; causal and K = 1: as if "
                "not causal)",
                _suits_full_matrix,
            ),
            SUITS_WINDOW,
        ),
        sizes=dict.fromkeys(("cpu", "gpu", "tpu"), _FULL_MATRIX_SIZES),
    ),
    Implementation(
        "rows",
        gather.attend_by_rows,
        reads_tables=True,
        saved_matrices=3,
        requirements=(
            HAS_TABLE,
            Condition(
                "the same ids for all batch entries",
                lambda call: call.ids_rank != 3 and not call.offset_per_entry,
            ),
            QUADRATIC_MEMORY_ALLOWED,
        ),
        preferences=(
            Condition(
                f"up to {ROWS_WITHOUT_BLOCKS} positions and known lengths if the block "
                f"requirements fail; otherwise up to {ROWS}, and known lengths except for "
                f"{TENSORFLOW_CPU}",
                _suits_rows,
            ),
            Condition(
                f"not {TORCH_CPU}, unless `portable`, with `relative_ids`, with an offset for each "
                "batch entry, or with a length of 0",
                lambda call: (
                    call.platform != TORCH_CPU
                    or call.portable
                    or call.is_empty
                    or not ONE_OFFSET.holds(call)
                ),
            ),
            SUITS_WINDOW,
        ),
    ),
    Implementation(
        "saved_blocks",
        "tensorflow.engine.attend_in_blocks",
        reads_tables=True,
        saved_matrices=1,
        requirements=(
            *(TENSORFLOW_ON_CPU, HAS_TABLE, *STANDARD_RESULTS, *BLOCK_REQUIREMENTS),
            QUADRATIC_MEMORY_ALLOWED,
        ),
        preferences=(
            Condition("`rematerialize` False", lambda call: call.rematerialize is False),
            up_to(SAVED_BLOCKS),
        ),
        sizes={"cpu": Sizes(512, causal_block=256, smallest=64, group=16384, chunk=64)},
        options={"save_weights": True},
    ),
    Implementation(
        "rematerialized_blocks",
        "tensorflow.engine.attend_in_blocks",
        reads_tables=True,
        saved_matrices=0,
        requirements=(TENSORFLOW_ON_CPU, HAS_TABLE, *STANDARD_RESULTS, *BLOCK_REQUIREMENTS),
        sizes={"cpu": Sizes(256, causal_block=128, smallest=64, group=4096, chunk=32)},
        options={"save_weights": False},
    ),
    Implementation(
        "band",
        skew.attend_by_band,
        saved_matrices=3,
        requirements=(HAS_TABLE, ONE_OFFSET, QUADRATIC_MEMORY_ALLOWED),
        preferences=(
            Condition(
                f"failed block requirements, or {TORCH_CPU}, known lengths and up to {BAND} "
                "positions",
                _suits_band,
            ),
            SUITS_WINDOW,
        ),
    ),
    Implementation(
        "fused",
        fused.attend,
        reads_tables=True,
        saved_matrices=0,
        requirements=(
            HAS_FUSED_KERNEL,
            NO_TRANSFORM,
            HAS_TABLE,
            *STANDARD_RESULTS,
            *BLOCK_REQUIREMENTS,
            Condition(
                "known lengths of at least 1, an int as query offset, and max(T, S) times the "
                "larger of N * H and R below 2**31",
                _has_fused_positions,
            ),
            Condition(
                "one depth of keys and values, of {} to {}; not float64".format(*FUSED_DEPTHS),
                _suits_fused_kernel,
            ),
            MASKS_KEYS_ONLY,
            NO_DROPOUT,
        ),
        preferences=(Condition("`rematerialize` True", lambda call: call.rematerialize is True),),
        sizes=dict.fromkeys(("cpu", "gpu"), Sizes(64)),
    ),
    Implementation(
        "flash",
        flash.attend,
        saved_matrices=0,
        requirements=(
            HAS_FLASH_KERNEL,
            NO_TRANSFORM,
            HAS_TABLE,
            ONE_HEAD_OF_KEYS_EACH,
            *BLOCK_REQUIREMENTS,
            Condition(
                "known lengths of at least 1, and an int as query offset; on JAX T = S and query "
                "offset 0",
                _has_flash_positions,
            ),
            SUITS_FLASH_KERNEL,
            MASKS_KEYS_ONLY,
            NO_DROPOUT,
        ),
        preferences=(
            Condition(
                f"`rematerialize` True, or more than {LONGEST_WITHOUT_FLASH} positions",
                _is_long_for_flash,
            ),
            Condition(
                f"left + right (causal: left) below {LONGEST_FLASH_TABLE} depths, and on "
                f"{TORCH_CPU} at most {WIDEST_FLASH_WINDOW} T",
                _is_narrow_for_flash,
            ),
        ),
        sizes={"cpu": Sizes(32, group=2**20), "gpu": Sizes(64)},
    ),
    Implementation(
        "unrolled_blocks",
        blockwise.attend,
        reads_tables=True,
        saved_matrices=1,
        requirements=(
            *BLOCK_REQUIREMENTS,
            Condition("known lengths", lambda call: call.knows_lengths),
            QUADRATIC_MEMORY_ALLOWED,
        ),
        preferences=(up_to(UNROLLED_BLOCKS),),
        sizes={
            "cpu": Sizes(64, max_blocks=8),
            "gpu": Sizes(512, max_blocks=8),
            "tpu": Sizes(512, max_blocks=8),
        },
        options={"unrolled": True},
    ),
    Implementation(
        "scanned_blocks",
        blockwise.attend,
        reads_tables=True,
        saved_matrices=0,
        requirements=BLOCK_REQUIREMENTS,
        sizes={
            "cpu": Sizes(128, causal_segments=3),
            "gpu": Sizes(512, causal_segments=3),
            "tpu": Sizes(512, causal_segments=3),
        },
        options={"unrolled": False},
    ),
    Implementation(
        "by_id",
        gather.attend_by_id,
        saved_matrices=3,
        requirements=(HAS_TABLE, QUADRATIC_MEMORY_ALLOWED),
    ),
)


# The choice.


class Candidate(NamedTuple):
    """An implementation, and the condition under which it runs: True or a scalar tensor."""

    implementation: Implementation
    condition: Any = True


def select(call, implementation=None):
    """Returns a list of the `Candidate`s of a call, in order of preference.

    The condition of the last one is True. There are several only if lengths are unknown.

    Args:
        call: an `AttentionCall`.
        implementation: an `Implementation` or its name. It is the first candidate, and its
            preferences are ignored. If lengths are unknown, further candidates follow, for lengths
            that fail its requirements.

    Raises:
        ValueError: if `implementation` fails a requirement, or no implementation meets the call.
    """
    candidates = []
    if implementation is not None:
        if isinstance(implementation, str):
            implementation = by_name(implementation)
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
        "not support returned attention scores, explicit positions, relative ids, a query offset "
        "for each batch entry, or a custom dropout function. Remove these arguments, or set "
        f"`flash_attention=None`. Received: {call}"
    )


def by_name(name):
    """Returns the row of a name."""
    rows = {row.name: row for row in TABLE}
    if name not in rows:
        raise ValueError(f"implementation must be one of {', '.join(rows)}. Received: {name!r}")
    return rows[name]
