"""The table of attention implementations, and the choice among them.

`limits` has the numbers. Tables of docs/how_it_works/dispatch.md are made from this module.
A `call` is an `AttentionCall`.
"""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, NamedTuple

from t2t_relpos import backend
from t2t_relpos.attention import blockwise, flash, fused, gather, limits, skew, tables
from t2t_relpos.attention.flash import MASK_FEATURES, is_key_mask
from t2t_relpos.attention.limits import Condition


def up_to(most):
    """Returns the condition that the matrix has at most the size of a limit."""
    return Condition(f"up to {most}", lambda call: call.has_at_most(most.of(call)))


def without(text, field):
    """Returns the condition that a field of a call is None or False, called `text` in its text."""
    return Condition(f"no {text}", lambda call: getattr(call, field) in (None, False))


NO_TABLES = Condition("no relative tables", lambda call: call.max_relative_position is None)
HAS_TABLE = Condition("a relative table", lambda call: call.max_relative_position is not None)
QUADRATIC_MEMORY_ALLOWED = Condition(
    "`rematerialize` is not True, unless the call is `portable` or a length is 0",
    lambda call: call.rematerialize is not True or call.portable or call.is_empty,
)
ONE_OFFSET = Condition(
    "no `relative_ids`, and one `query_offset` for the batch", lambda call: call.has_one_offset
)
BLOCK_REQUIREMENTS = (
    ONE_OFFSET,
    without("returned weights", "return_weights"),
    without("`bias`", "has_bias"),
    Condition("`dropout` is None or an `AttentionDropout`", lambda call: call.seeded_dropout),
    without("`portable` operations", "portable"),
)
PLAIN_CALLS = (
    without("heads of queries that share keys", "grouped_queries"),
    without("`relative_query`", "has_relative_query"),
    without("`sinks` or returned log-sum-exps", "needs_log_sums"),
)
TENSORFLOW_ON_CPU = Condition(
    limits.TENSORFLOW_CPU, lambda call: call.platform == limits.TENSORFLOW_CPU
)
TENSORFLOW_WITHOUT_XLA = Condition(
    "TensorFlow without XLA", lambda call: call.platform.startswith("TensorFlow without XLA")
)
NO_SLIDING_WINDOW = without("`sliding_window`", "sliding_window")


def _meets_block_requirements(call):
    return all(condition.holds(call) for condition in BLOCK_REQUIREMENTS)


def _suits_window(call):
    """Returns whether a masked matrix is as fast as blocks that skip keys, or the only choice."""
    if call.sliding_window is None or not _meets_block_requirements(call):
        return True
    if not (call.knows_lengths or TENSORFLOW_WITHOUT_XLA.holds(call)):
        return False
    return call.has_at_most(
        limits.MASKED_WINDOWS * max(call.sliding_window - 1, limits.SHORTEST_WINDOW)
    )


SUITS_WINDOW = Condition(
    f"with a `sliding_window`, up to {limits.MASKED_WINDOWS} times the distances in it (at least "
    f"{limits.SHORTEST_WINDOW}), and known lengths except on TensorFlow without XLA, or calls that "
    "fail the block requirements",
    _suits_window,
)


def _full_matrix_fits(call):
    """Returns whether there are table rows besides the reference and queries are the last keys."""
    length_q, length_k = call.length_q, call.length_k
    if not any(call.distances):
        return False
    fits = call.longest is not None or length_q >= 1
    if length_k is not length_q:
        fits &= length_k >= length_q
    if call.query_offset is not None:
        fits &= call.query_offset == (0 if length_k is length_q else length_k - length_q)
    return fits


def _suits_full_matrix(call):
    if call.platform != limits.TENSORFLOW_CPU:
        return call.has_at_most(limits.FULL_MATRIX.of(call))
    left, right = call.distances
    shortest = limits.SHORTEST_FULL_MATRIX.of(call)
    longest = (limits.FULL_MATRIX if call.rematerialize is False else limits.ROWS).of(call)
    fewest = left if call.causal else max(left, right) + limits.FULL_MATRIX_SIZES.long_chunk
    if not call.knows_lengths and call.longest is not None:
        # One implementation in the graph if the other would save little.
        if call.causal and fewest <= shortest < call.longest:
            return call.has_at_most(longest)
        if call.longest <= (shortest if call.causal else limits.LONGEST_ROWS_ALONE):
            return False
    is_long = call.length_q >= fewest
    return is_long & (call.num_pairs >= shortest**2) & call.has_at_most(longest)


def _suits_by_id(call):
    if not _meets_block_requirements(call):
        return True
    is_known = call.platform == limits.TORCH_CPU and call.knows_lengths
    return is_known and call.has_at_most(limits.BY_ID.of(call))


def _suits_rows(call):
    if not _meets_block_requirements(call):
        return call.knows_lengths and call.has_at_most(limits.ROWS_WITHOUT_BLOCKS.of(call))
    knows_lengths = call.knows_lengths or call.platform == limits.TENSORFLOW_CPU
    return knows_lengths and call.has_at_most(limits.ROWS.of(call))


def _has_queries_for_rows(call):
    if (
        call.platform != limits.TORCH_CPU
        or call.portable
        or call.is_empty
        or not call.has_one_offset
    ):
        return True
    if call.query is None or not call.knows_lengths:
        return False
    num_queries = call.query.shape[0] * call.query.shape[1]
    return num_queries >= limits.FEWEST_QUERIES_OF_ROWS and call.distances.num_ids > call.length_k


def _saves_weights_of_blocks(call):
    is_short = call.knows_lengths and call.has_at_most(limits.UNROLLED_BLOCKS.of(call))
    return is_short and QUADRATIC_MEMORY_ALLOWED.holds(call)


def _has_flash_kernel(call):
    # Calls of `explain` have no tensors, and may be for another machine.
    is_known = call.query is not None
    has_kernel = call.platform in limits.FLASH_KERNELS
    return has_kernel and (not is_known or backend.flash_kernel.has_kernel(call.query))


def _suits_flash_kernel(call):
    if not _has_flash_kernel(call):  # which another condition reports
        return True
    kernel, is_known = limits.FLASH_KERNELS[call.platform], call.query is not None
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
    longest = limits.LONGEST_WITHOUT_FLASH.of(call)
    return call.rematerialize is True or not call.has_at_most(longest)


def _saves_time_with_repeated_keys(call):
    longest = limits.LONGEST_SHARED_KEYS_WITHOUT_FLASH.of(call)
    return not (call.grouped_queries and call.has_at_most(longest))


def _has_fast_flash_window(call):
    if call.sliding_window is None:
        return True
    is_short = call.sliding_window <= limits.WIDEST_SHORT_FLASH.of(call)
    is_fast = is_short or not call.has_at_most(limits.LONGEST_WINDOWED_WITHOUT_FLASH.of(call))
    return call.platform == limits.TORCH_CPU and is_fast


def _is_narrow_for_flash(call):
    if call.distances is None:
        return True
    left, right = call.distances
    width = left + (0 if call.causal else right)
    is_narrow = (
        call.platform != limits.TORCH_CPU or width <= limits.WIDEST_FLASH_WINDOW * call.length_q
    )
    return is_narrow and width < limits.LONGEST_FLASH_TABLE * max(call.key_dim, call.value_dim)


MASKS_KEYS_ONLY = Condition(
    "a `mask` of keys only", lambda call: call.mask is None or is_key_mask(call.mask)
)
NO_DROPOUT = without("`dropout`", "dropout")
NO_TRANSFORM = Condition("no transform of `torch.func`", lambda call: not backend.is_transformed())


def _has_fused_kernel(call):
    # Calls of `explain` have no tensors. The GPU is then as `explain` says, and has Triton.
    if call.query is None:
        return call.platform == limits.TORCH_GPU
    return backend.has_fused_kernel(call.query)


def _suits_fused_kernel(call):
    depth, (smallest, largest) = call.key_dim, limits.FUSED_DEPTHS
    has_depth = smallest <= depth <= largest and call.value_dim == depth
    return has_depth and call.dtype in ("float16", "bfloat16", "float32")


def _has_fused_positions(call):
    if not (call.knows_lengths and isinstance(call.query_offset, (int, NoneType))):
        return False
    # Indices into the vectors and the array by row of a head are int32.
    heads = 1 if call.query is None else call.query.shape[1]
    longest = max(call.length_q, call.length_k)
    size = max(heads * call.key_dim, call.distances.num_ids if call.distances else 1)
    return min(call.length_q, call.length_k) > 0 and longest * size < limits.LARGEST_FUSED


def _has_small_mask(call):
    masks_keys = not call.causal and (call.mask is None or is_key_mask(call.mask))
    return call.rematerialize is not True or masks_keys or gather.needs_no_causal_mask(call)


HAS_FUSED_KERNEL = Condition(
    "PyTorch with Triton on an NVIDIA GPU of the architecture Ampere or later", _has_fused_kernel
)
HAS_FLASH_KERNEL = Condition(
    "PyTorch on a CPU or an NVIDIA GPU, or JAX on an NVIDIA GPU", _has_flash_kernel
)
SUITS_FLASH_KERNEL = Condition(
    "values as deep as keys: on a GPU a multiple of 8, and not in float64; on JAX in a "
    "16-bit type, and a depth that cuDNN supports",
    _suits_flash_kernel,
)


# The table, in order of preference: `select` takes the first row whose conditions hold.


@dataclasses.dataclass(frozen=True, eq=False)
class Implementation:
    """An attention implementation: a row of `TABLE`.

    Args:
        name: name of the row.
        function: called with an `AttentionCall`, the `Sizes` if there are any, and `options`. It
            returns `tables.Results`. A function that requires TensorFlow is given by its dotted
            name in `t2t_relpos.attention`.
        saved_matrices: number of `[T, S]` matrices per head that are saved for the gradient, for
            `explain` and the documentation.
        saves_weights: condition under which they are saved, and not computed again. It does not
            depend on unknown lengths. The function gets it as `save_weights`. None: always.
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
    saves_weights: Condition | None = None
    sizes: Mapping[str, limits.Sizes] | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    reads_tables: bool = False

    def attend(self, call):
        """Returns the `Results` of a call, with the relative values."""
        function = self.function
        if isinstance(function, str):
            module, _, name = function.rpartition(".")
            function = getattr(importlib.import_module(f"t2t_relpos.attention.{module}"), name)
        sizes = [] if self.sizes is None else [self.sizes[call.device]]
        options = dict(self.options)
        if self.saves_weights is not None:
            options["save_weights"] = self.saves_weights.holds(call)
        compute = lambda call: function(call, *sizes, **options)
        return compute(call) if self.reads_tables else tables.attend_by_scores(compute, call)

    def num_saved(self, call):
        """Returns the number of `[T, S]` matrices per head that are saved for the gradient."""
        is_saved = self.saves_weights is None or self.saves_weights.holds(call)
        return self.saved_matrices if is_saved else 0

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
            *PLAIN_CALLS,
            *BLOCK_REQUIREMENTS,
            NO_DROPOUT,
            Condition(
                "known lengths of at least 1", lambda call: call.knows_lengths and not call.is_empty
            ),
            NO_SLIDING_WINDOW,
            Condition("values as deep as keys", lambda call: call.key_dim == call.value_dim),
            Condition(
                "with `rematerialize` True, masks of keys only, or `causal` as the only mask, with "
                "T = S",
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
            *PLAIN_CALLS,
            *BLOCK_REQUIREMENTS,
            Condition(
                "K of at least 1, and queries at the positions of the last keys, S ≥ T ≥ 1",
                _full_matrix_fits,
            ),
            QUADRATIC_MEMORY_ALLOWED,
        ),
        preferences=(
            Condition(
                f"up to {limits.FULL_MATRIX}. On a CPU, at least {limits.SHORTEST_FULL_MATRIX} and "
                f"K + {limits.FULL_MATRIX_SIZES.long_chunk} (causal: K) queries, and without "
                f"`rematerialize` False up to {limits.ROWS.platforms[limits.TENSORFLOW_CPU]}",
                _suits_full_matrix,
            ),
            SUITS_WINDOW,
        ),
        sizes=dict.fromkeys(("cpu", "gpu", "tpu"), limits.FULL_MATRIX_SIZES),
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
                f"up to {limits.ROWS}, and known lengths except on {limits.TENSORFLOW_CPU}. If "
                f"block requirements fail, known lengths up to {limits.ROWS_WITHOUT_BLOCKS}",
                _suits_rows,
            ),
            Condition(
                f"on {limits.TORCH_CPU}, at least {limits.FEWEST_QUERIES_OF_ROWS} queries at a "
                "position (B · N) and more table rows than keys, or calls with `portable` "
                "operations, `relative_ids`, offsets of batch entries, or a length of 0",
                _has_queries_for_rows,
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
            *(TENSORFLOW_ON_CPU, HAS_TABLE, *PLAIN_CALLS, *BLOCK_REQUIREMENTS),
            QUADRATIC_MEMORY_ALLOWED,
        ),
        preferences=(
            Condition("`rematerialize` False", lambda call: call.rematerialize is False),
            up_to(limits.SAVED_BLOCKS),
        ),
        sizes={"cpu": limits.Sizes(512, causal_block=256, smallest=64, group=16384, chunk=64)},
        options={"save_weights": True},
    ),
    Implementation(
        "rematerialized_blocks",
        "tensorflow.engine.attend_in_blocks",
        reads_tables=True,
        saved_matrices=0,
        requirements=(TENSORFLOW_ON_CPU, HAS_TABLE, *PLAIN_CALLS, *BLOCK_REQUIREMENTS),
        sizes={"cpu": limits.Sizes(256, causal_block=128, smallest=64, group=4096, chunk=32)},
        options={"save_weights": False},
    ),
    Implementation(
        "by_id",
        skew.attend_by_id,
        saved_matrices=3,
        requirements=(HAS_TABLE, QUADRATIC_MEMORY_ALLOWED),
        preferences=(
            Condition(
                "calls that fail the block requirements, and known lengths up to "
                f"{limits.BY_ID} on {limits.TORCH_CPU}",
                _suits_by_id,
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
            *PLAIN_CALLS,
            *BLOCK_REQUIREMENTS,
            Condition(
                "known lengths of at least 1 and an int `query_offset`; max(T, S) · max(N · H, R) "
                "below 2³¹",
                _has_fused_positions,
            ),
            Condition(
                "values as deep as keys, {} to {}; not float64".format(*limits.FUSED_DEPTHS),
                _suits_fused_kernel,
            ),
            MASKS_KEYS_ONLY,
            NO_SLIDING_WINDOW,
            NO_DROPOUT,
        ),
        preferences=(Condition("`rematerialize` True", lambda call: call.rematerialize is True),),
        sizes=dict.fromkeys(("cpu", "gpu"), limits.Sizes(64)),
    ),
    Implementation(
        "flash",
        flash.attend,
        saved_matrices=0,
        requirements=(
            HAS_FLASH_KERNEL,
            NO_TRANSFORM,
            HAS_TABLE,
            *BLOCK_REQUIREMENTS,
            Condition(
                "known lengths of at least 1, and an int `query_offset`; on JAX T = S and offset 0",
                _has_flash_positions,
            ),
            SUITS_FLASH_KERNEL,
            MASKS_KEYS_ONLY,
            NO_DROPOUT,
        ),
        preferences=(
            Condition(
                f"`rematerialize` True, or more than {limits.LONGEST_WITHOUT_FLASH}",
                _is_long_for_flash,
            ),
            Condition(
                "with heads of queries that share keys, more than "
                f"{limits.LONGEST_SHARED_KEYS_WITHOUT_FLASH}",
                _saves_time_with_repeated_keys,
            ),
            Condition(
                f"with a `sliding_window`, {limits.TORCH_CPU}, and more than "
                f"{limits.LONGEST_WINDOWED_WITHOUT_FLASH} or a window of at most "
                f"{limits.WIDEST_SHORT_FLASH.numbers}",
                _has_fast_flash_window,
            ),
            Condition(
                f"left + right (causal: left) below {limits.LONGEST_FLASH_TABLE} times the depth, "
                f"and on {limits.TORCH_CPU} at most T / {round(1 / limits.WIDEST_FLASH_WINDOW)}",
                _is_narrow_for_flash,
            ),
        ),
        sizes={"cpu": limits.Sizes(32, smallest=96, group=2**20), "gpu": limits.Sizes(64)},
    ),
    Implementation(
        "blocks",
        blockwise.attend,
        reads_tables=True,
        saved_matrices=1,
        requirements=BLOCK_REQUIREMENTS,
        saves_weights=Condition(
            f"known lengths up to {limits.UNROLLED_BLOCKS}, unless `rematerialize` is True",
            _saves_weights_of_blocks,
        ),
        sizes={
            "cpu": limits.Sizes(64, loop_block=128, max_blocks=8, causal_segments=3),
            "gpu": limits.Sizes(512, max_blocks=8, causal_segments=3),
            "tpu": limits.Sizes(512, max_blocks=8, causal_segments=3),
        },
    ),
)

# Rows of earlier versions, and those that compute their calls.
RENAMED = {"band": "by_id", "unrolled_blocks": "blocks", "scanned_blocks": "blocks"}


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
    unmet = "; ".join(each.text for each in BLOCK_REQUIREMENTS if each.holds(call) is False)
    raise ValueError(
        "Memory linear in length (`rematerialize=True`, `flash_attention=True` of a layer) "
        f"requires: {unmet}. Positions of a layer are `relative_ids`. Remove these arguments, or "
        f"set `flash_attention=None`. Received: {call}"
    )


def by_name(name):
    """Returns the row of a name."""
    rows = {row.name: row for row in TABLE}
    if name not in rows:
        names, now = ", ".join(rows), f", which is now {RENAMED[name]!r}" if name in RENAMED else ""
        raise ValueError(f"implementation must be one of {names}. Received: {name!r}{now}")
    return rows[name]
