"""The table of attention implementations, and the only code that chooses one.

All thresholds of `attend` are in this module. They were measured on CPUs. Block sizes for GPUs and
TPUs are estimates.
"""

import functools

from keras import ops

from t2t_relpos import _backend
from t2t_relpos.attention import blockwise, full_matrix
from t2t_relpos.attention.implementation import (
    BlockSizes,
    Candidate,
    Condition,
    GroupedBlockSizes,
    Implementation,
)

# Largest number of positions for which `rows` gathers a table row for each pair.
LONGEST_ROWS = 64
LONGEST_ROWS_JAX = 16
LONGEST_ROWS_TORCH_CPU = 256
# TensorFlow on a CPU without XLA. Also the limits of `full_matrix` unless `rematerialize=False`.
LONGEST_ROWS_TENSORFLOW_CPU, LONGEST_ROWS_TENSORFLOW_CPU_CAUSAL = 256, 128
# Requests that blocks do not support, for example with returned weights.
LONGEST_ROWS_WITHOUT_BLOCKS = 512
# `full_matrix` is faster than `rows` from this many positions.
SHORTEST_FULL_MATRIX, SHORTEST_FULL_MATRIX_CAUSAL = 96, 40
# With `rematerialize=False`, `full_matrix` is faster than blocks up to this many positions.
LONGEST_FULL_MATRIX, LONGEST_FULL_MATRIX_CAUSAL = 1024, 256
# `full_matrix` sums the left tail in chunks: short ones up to this many keys, then long ones.
LONGEST_SHORT_CHUNKS, SHORT_CHUNK, LONG_CHUNK = 256, 16, 32
# `saved_blocks` is used up to this many positions.
LONGEST_SAVED = 4096
# Blocks are unrolled up to this many positions. `scanned_blocks` is faster for longer sequences,
# although it computes the weights twice. There, unrolled blocks would exceed the CPU caches, or
# be too many to compile quickly.
LONGEST_UNROLLED = 1024


def select(request, implementation=None):
    """Returns the implementations for a request, as candidates in order of preference.

    Args:
        request: a `Request`.
        implementation: an `Implementation` or its name. It is the first candidate, and its
            preferences are ignored. If lengths are unknown, further candidates follow, for lengths
            that fail its requirements.

    Returns:
        A list of `Candidate`. The condition of the last one is True. The list has several entries
        only if lengths are unknown.

    Raises:
        ValueError: if `implementation` fails a requirement, or no implementation meets the request.
    """
    rows = [(row, False) for row in TABLE]
    if implementation is not None:
        if isinstance(implementation, str):
            implementation = _by_name(implementation)
        unmet = implementation.unmet_condition(request, ignore_preferences=True)
        if unmet is not None:
            raise ValueError(
                f"Attention implementation {implementation.name!r} requires: {unmet.text}. "
                f"Received: {request}"
            )
        rows = [(implementation, True), *rows]
    candidates = []
    for row, is_named in rows:
        if row.unmet_condition(request, ignore_preferences=is_named) is None:
            condition = row.condition(request, ignore_preferences=is_named)
            candidates.append(Candidate(row, condition))
            if candidates[-1].condition is True:
                return candidates
    raise ValueError(
        "Memory linear in length (`rematerialize=True`, `flash_attention=True` of a layer) does "
        "not support returned attention scores, explicit positions, relative ids, or a custom "
        "dropout function. Remove these arguments, or set `flash_attention=None`. Received: "
        f"{request}"
    )


def full_matrix_chunk(length_k):
    """Returns the keys per chunk of the full matrix: an int, or a tensor for an unknown length."""
    if isinstance(length_k, int):
        return SHORT_CHUNK if length_k <= LONGEST_SHORT_CHUNKS else LONG_CHUNK
    # Two ints would get a dtype that depends on `keras.config.floatx()`.
    chunks = (ops.cast(chunk, "int32") for chunk in (SHORT_CHUNK, LONG_CHUNK))
    return ops.where(length_k <= LONGEST_SHORT_CHUNKS, *chunks)


def _by_name(name):
    rows = {row.name: row for row in TABLE}
    if name not in rows:
        raise ValueError(f"implementation must be one of {', '.join(rows)}. Received: {name!r}")
    return rows[name]


def _full_matrix_fits(request):
    """Returns whether all diagonals of the band exist and the last query is at the last key."""
    k, length_q, length_k = request.max_relative_position, request.length_q, request.length_k
    if not k:
        return False
    chunk = 0 if request.causal and k > 1 else full_matrix_chunk(length_k)
    fits = (length_q >= k + chunk) & (length_k >= length_q)
    if request.query_offset is not None:
        fits &= request.query_offset == length_k - length_q
    return fits


def _within_full_matrix_range(request):
    causal = request.causal and (request.max_relative_position or 0) > 1
    shortest = SHORTEST_FULL_MATRIX_CAUSAL if causal else SHORTEST_FULL_MATRIX
    longest = LONGEST_ROWS_TENSORFLOW_CPU_CAUSAL if request.causal else LONGEST_ROWS_TENSORFLOW_CPU
    if request.rematerialize is False:
        longest = LONGEST_FULL_MATRIX_CAUSAL if request.causal else LONGEST_FULL_MATRIX
    return (request.num_pairs >= shortest**2) & request.has_at_most(longest)


def _within_rows_range(request):
    if not all(condition.holds(request) for condition in BLOCK_REQUIREMENTS):
        return request.knows_lengths and request.has_at_most(LONGEST_ROWS_WITHOUT_BLOCKS)
    if TENSORFLOW_ON_CPU.holds(request):
        longest = (
            LONGEST_ROWS_TENSORFLOW_CPU_CAUSAL if request.causal else LONGEST_ROWS_TENSORFLOW_CPU
        )
        return request.has_at_most(longest)
    longest = LONGEST_ROWS_JAX if request.backend == "jax" else LONGEST_ROWS
    if request.backend == "torch" and request.device == "cpu":
        longest = LONGEST_ROWS_TORCH_CPU
    return request.knows_lengths and request.has_at_most(longest)


def _run_full_matrix(inputs):
    from t2t_relpos.attention.tensorflow import full_matrix as tensorflow_full_matrix

    chunk = full_matrix_chunk(inputs.lengths[1])
    return tensorflow_full_matrix.attend(inputs, chunk), None


def _run_tensorflow_blocks(inputs, sizes, *, save_weights):
    from t2t_relpos.attention.tensorflow import blockwise as tensorflow_blockwise

    sizes = sizes["causal" if inputs.causal else "bidirectional"]
    return tensorflow_blockwise.attend(inputs, sizes, save_weights=save_weights), None


def _run_keras_blocks(inputs, sizes, *, unrolled):
    return blockwise.attend(inputs, sizes[_backend.device()], unrolled=unrolled), None


_HAS_TABLE = Condition("a relative table", lambda r: r.max_relative_position is not None)
QUADRATIC_MEMORY_ALLOWED = Condition(
    "`rematerialize` is not True, unless `portable` (memory is quadratic) or a length is 0",
    lambda r: r.rematerialize is not True or r.portable or r.is_empty,
)
_ONE_OFFSET = Condition(
    "no `relative_ids`, and one query offset for the batch",
    lambda r: r.ids_rank is None and not r.offset_per_entry,
)
BLOCK_REQUIREMENTS = (
    _ONE_OFFSET,
    Condition("no returned weights", lambda r: not r.return_weights),
    Condition("dropout is None or an `AttentionDropout`", lambda r: r.seeded_dropout),
    Condition("not `portable`", lambda r: not r.portable),
)
TENSORFLOW_ON_CPU = Condition(
    "TensorFlow on a CPU without XLA",
    lambda r: r.backend == "tensorflow" and not r.xla and r.device == "cpu",
)
_TENSORFLOW_REQUIREMENTS = (TENSORFLOW_ON_CPU, _HAS_TABLE, *BLOCK_REQUIREMENTS)
_FULL_MATRIX_FITS_REQUIREMENT = Condition(
    "K >= 1; S >= T; query offset S - T; T >= K if causal and K > 1, otherwise T >= K + chunk",
    _full_matrix_fits,
)

TABLE = (
    Implementation(
        "without_tables",
        "full_matrix.attend_without_tables",
        full_matrix.attend_without_tables,
        saved_matrices=3,
        requirements=(
            Condition("no relative tables", lambda r: r.max_relative_position is None),
            QUADRATIC_MEMORY_ALLOWED,
        ),
    ),
    Implementation(
        "full_matrix",
        "tensorflow.full_matrix.attend",
        _run_full_matrix,
        saved_matrices=2,
        requirements=(
            *_TENSORFLOW_REQUIREMENTS,
            _FULL_MATRIX_FITS_REQUIREMENT,
            QUADRATIC_MEMORY_ALLOWED,
        ),
        preferences=(
            Condition(
                f"{SHORTEST_FULL_MATRIX} to {LONGEST_FULL_MATRIX} positions "
                f"(causal: {SHORTEST_FULL_MATRIX_CAUSAL} to {LONGEST_FULL_MATRIX_CAUSAL}, with "
                f"K = 1 from {SHORTEST_FULL_MATRIX}); if `rematerialize` is None up to "
                f"{LONGEST_ROWS_TENSORFLOW_CPU} (causal: {LONGEST_ROWS_TENSORFLOW_CPU_CAUSAL})",
                _within_full_matrix_range,
            ),
        ),
    ),
    Implementation(
        "rows",
        "full_matrix.attend_by_rows",
        full_matrix.attend_by_rows,
        saved_matrices=3,
        requirements=(
            _HAS_TABLE,
            Condition(
                "the same ids for all batch entries",
                lambda r: r.ids_rank != 3 and not r.offset_per_entry,
            ),
            QUADRATIC_MEMORY_ALLOWED,
        ),
        preferences=(
            Condition(
                f"up to {LONGEST_ROWS_WITHOUT_BLOCKS} positions if the block requirements fail; "
                f"otherwise {LONGEST_ROWS_TENSORFLOW_CPU} (causal: "
                f"{LONGEST_ROWS_TENSORFLOW_CPU_CAUSAL}) on TensorFlow on a CPU without XLA; "
                f"{LONGEST_ROWS_TORCH_CPU} on PyTorch on a CPU, {LONGEST_ROWS_JAX} on JAX, "
                f"otherwise {LONGEST_ROWS}; except for TensorFlow on a CPU, only known lengths",
                _within_rows_range,
            ),
        ),
    ),
    Implementation(
        "saved_blocks",
        "tensorflow.blockwise.attend",
        functools.partial(_run_tensorflow_blocks, save_weights=True),
        saved_matrices=1,
        requirements=(*_TENSORFLOW_REQUIREMENTS, QUADRATIC_MEMORY_ALLOWED),
        preferences=(
            Condition("`rematerialize` False", lambda r: r.rematerialize is False),
            Condition(f"up to {LONGEST_SAVED} positions", lambda r: r.has_at_most(LONGEST_SAVED)),
        ),
        sizes={
            "bidirectional": GroupedBlockSizes(largest_block=512, keys_per_group=16384, chunk=64),
            "causal": GroupedBlockSizes(largest_block=256, keys_per_group=16384, chunk=64),
        },
    ),
    Implementation(
        "rematerialized_blocks",
        "tensorflow.blockwise.attend",
        functools.partial(_run_tensorflow_blocks, save_weights=False),
        saved_matrices=0,
        requirements=_TENSORFLOW_REQUIREMENTS,
        sizes={
            "bidirectional": GroupedBlockSizes(largest_block=256, keys_per_group=4096, chunk=32),
            "causal": GroupedBlockSizes(largest_block=128, keys_per_group=4096, chunk=32),
        },
    ),
    Implementation(
        "unrolled_blocks",
        "blockwise.attend",
        functools.partial(_run_keras_blocks, unrolled=True),
        saved_matrices=1,
        requirements=(
            *BLOCK_REQUIREMENTS,
            Condition("known lengths", lambda r: r.knows_lengths),
            QUADRATIC_MEMORY_ALLOWED,
        ),
        preferences=(
            Condition(
                f"up to {LONGEST_UNROLLED} positions", lambda r: r.has_at_most(LONGEST_UNROLLED)
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
        "full_matrix.attend_by_band",
        full_matrix.attend_by_band,
        saved_matrices=3,
        requirements=(_HAS_TABLE, _ONE_OFFSET, QUADRATIC_MEMORY_ALLOWED),
    ),
    Implementation(
        "by_id",
        "full_matrix.attend_by_id",
        full_matrix.attend_by_id,
        saved_matrices=3,
        requirements=(_HAS_TABLE, QUADRATIC_MEMORY_ALLOWED),
    ),
)
