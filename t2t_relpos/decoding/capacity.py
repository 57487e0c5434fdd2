"""Checks that a state has room for the steps of a search."""

import numbers


def check_capacity(step, state, max_length, length_limit):
    """Raises ValueError if a state has room for fewer steps than a search may take.

    A compiled step past the end of its cache can't raise an error: its outputs are NaN. The check
    is skipped if `step` has no method `capacity`, if a size is a tensor, or if `length_limit` may
    end the search before `max_length`.

    Args:
        step: the step function of a search.
        state: its state.
        max_length: L of the search.
        length_limit: as in `beam_search`.
    """
    if length_limit is not None or not hasattr(step, "capacity"):
        return
    capacity = step.capacity(state)
    if not all(isinstance(size, numbers.Integral) for size in (capacity, max_length)):
        return
    if capacity < max_length:
        raise ValueError(
            f"Expected a state with room for max_length={max_length} steps. Received: room for "
            f"{capacity}. Pass max_length={max_length} to `encode`, or max_length={capacity} to "
            "the search."
        )
