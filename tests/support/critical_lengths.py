"""Lengths at which a computation changes, for tests to share."""

from t2t_relpos.attention import explain
from t2t_relpos.decoding.beam_search import FIRST_STEPS

# The sequences of the README's examples, and long ones.
SHORT, LONG = 64, 1000
# A compiled beam search starts its third, fourth and fifth loop at these ids: 33, 65 and 129.
SEARCH_LENGTHS = tuple(2**n * FIRST_STEPS + 1 for n in (1, 2, 3))


def attention_lengths(longest=1100, **options):
    """Returns the lengths before and after each change of `attend`'s implementation.

    Args:
        longest: the largest length.
        **options: options of `explain`, such as `causal`. Default: a call on the current backend.
    """
    chosen = {length: explain(length, **options).chosen for length in range(1, longest + 1)}
    changes = [length for length in range(2, longest + 1) if chosen[length] != chosen[length - 1]]
    return sorted({length for change in changes for length in (change - 1, change)})
