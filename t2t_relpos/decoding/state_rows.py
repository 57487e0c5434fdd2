"""What all searches share: the rows of a model's decoding state, and limits.

A state is a nested dict of tensors `[rows, ...]`. The entry under `"context"` is the same for all
beams of a sentence and never changes. The entry under `"sentences"` has tensors `[B, ...]`, which
searches neither repeat nor reorder.
"""

import numbers

import keras
from keras import ops

from t2t_relpos import _checks
from t2t_relpos.backend import as_size, take_rows


def repeat_rows(state, times):
    """Repeats each row: `[B, ...]` -> `[B * times, ...]`, except under `"sentences"`."""
    if isinstance(times, int) and times == 1:
        return state
    return _map_rows(lambda x: ops.repeat(x, times, axis=0), state)


def gather_rows(state, index):
    """Returns the rows `index`, int `[rows]`, of all tensors except those under `"sentences"`."""
    return _map_rows(lambda x: take_rows(x, index), state)


def _map_rows(function, state):
    return {
        name: value if name == "sentences" else keras.tree.map_structure(function, value)
        for name, value in state.items()
    }


def split_context(state):
    """Returns the entry `"context"` (or None) and a dict of the other entries."""
    rest = {name: value for name, value in state.items() if name != "context"}
    return state.get("context"), rest


def join_context(context, rest):
    """Returns the state that `split_context` split."""
    return rest if context is None else {**rest, "context": context}


def checked_sizes(batch_size, max_length):
    """Returns the sizes of a search as ints or int32 tensors. Values of tensors are not checked.

    Args:
        batch_size: B.
        max_length: L, largest number of ids of an output.

    Raises:
        ValueError: if a number is no integer, B is below 0 or L is below 1.
    """
    if isinstance(batch_size, numbers.Number) and not _checks.is_count(batch_size):
        raise ValueError(
            "Expected `batch_size` to be an int of at least 0 or a scalar tensor. Received: "
            f"batch_size={batch_size!r}"
        )
    if not ops.is_tensor(max_length):
        max_length = _checks.positive_int(max_length, "max_length")
    return as_size(batch_size), as_size(max_length)


def limits(batch_size, max_length, length_limit):
    """Returns the largest number of ids of each sentence, int32 `[B]`."""
    limit = ops.zeros((batch_size,), dtype="int32") + max_length
    if length_limit is None:
        return limit
    return ops.minimum(ops.cast(length_limit, "int32"), limit)


def method_of_step(step, name):
    """Returns a method of the object that is a step function, or whose method it is, or None."""
    return getattr(getattr(step, "__self__", step), name, None)


def check_capacity(step, state, max_length, length_limit):
    """Raises ValueError if a state has room for fewer steps than a search may take.

    A compiled step past the end of its cache can't raise an error: its outputs are NaN. The check
    is skipped if there is no method `capacity`, if a size is a tensor, or if `length_limit` may
    end the search before `max_length`.

    Args:
        step: the step function of a search.
        state: its state.
        max_length: L of the search.
        length_limit: as in `beam_search`.
    """
    capacity_of = method_of_step(step, "capacity")
    if length_limit is not None or capacity_of is None:
        return
    capacity = capacity_of(state)
    if not all(isinstance(size, numbers.Integral) for size in (capacity, max_length)):
        return
    if capacity < max_length:
        raise ValueError(
            f"Expected a state with room for max_length={max_length} steps. Received: room for "
            f"{capacity}. Pass max_length={max_length} to `encode`, or max_length={capacity} to "
            "the search."
        )
