"""Lengths at which searches and attention change how they compute, for tests to share."""

import functools

from t2t_relpos.attention import explain
from t2t_relpos.decoding.search import FIRST_STEPS

# A compiled search starts its third, fourth and fifth loop at these ids: 33, 65 and 129.
SEARCH_LENGTHS = tuple(2**n * FIRST_STEPS + 1 for n in (1, 2, 3))


@functools.cache
def attention_lengths(longest=1100, **options):
    """Returns the lengths before and after each change of `attend`'s implementation.

    Args:
        longest: the largest length.
        **options: options of `explain`, such as `causal`. Default: a call on the current backend.
    """
    chosen = [explain(length, **options).chosen for length in range(1, longest + 1)]
    pairs = zip(range(1, longest), chosen, chosen[1:])
    changes = [length for length, before, after in pairs if before != after]
    return sorted({length for change in changes for length in (change, change + 1)})
