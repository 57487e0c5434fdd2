"""Lengths at which searches and attention change how they compute, on any backend and device."""

from t2t_relpos.attention import dispatch

# A compiled beam search is a chain of loops, with larger caches after 16, 32, 64, … steps. The
# shortest outputs with 3, 4 and 5 loops:
SEARCH_LENGTHS = (33, 65, 129)

# The shortest sequences for which `attend` chooses another implementation.
ATTENTION_LENGTHS = sorted(
    {
        dispatch.SHORTEST_FULL_MATRIX_CAUSAL,
        dispatch.SHORTEST_FULL_MATRIX,
        dispatch.LONGEST_ROWS_JAX_CPU + 1,
        dispatch.LONGEST_ROWS + 1,
        dispatch.LONGEST_ROWS_GPU + 1,
        dispatch.LONGEST_ROWS_TORCH_CPU_CAUSAL + 1,
        dispatch.LONGEST_ROWS_TORCH_CPU + 1,
        dispatch.LONGEST_ROWS_TENSORFLOW_CPU_CAUSAL + 1,
        dispatch.LONGEST_ROWS_TENSORFLOW_CPU + 1,
        dispatch.LONGEST_ROWS_WITHOUT_BLOCKS + 1,
    }
)

CRITICAL_LENGTHS = sorted({*SEARCH_LENGTHS, *ATTENTION_LENGTHS})
