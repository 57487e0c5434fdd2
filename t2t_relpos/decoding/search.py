"""The loop of all searches, and what they share: requests, and rows of a model's decoding state.

A search runs a step function, and a selection chooses the ids: `Beams` of `beam_search.py`, or
`SinglePath` of `sampling.py`. It has these members:

- `num_rows`: hypotheses per sentence, an int or a scalar tensor.
- `fixed`: a dict of tensors `[B * num_rows, ...]` that no step changes.
- `RESULT_ENTRIES`: names of the entries of hypotheses that `result` reads.
- `first_rows(request)`: number of rows per sentence in the first step: `num_rows` if the state has
  a context or there is a prefix.
- `start(limit, rows)`: the hypotheses before the first step, a dict of tensors `[B, ...]`. It has
  the `last` ids, int `[B, rows]`, and `done`, bool `[B]`.
- `advance(hypotheses, i, logits, limit, fixed)`: the hypotheses after step `i`, and the rows that
  they extend, int `[B * num_rows]`, or None if each extends its own row.
- `result(hypotheses)`: the `DecodingResult`.

A state is a nested dict of tensors `[rows, ...]`. The entry under `"context"` is the same for all
hypotheses of a sentence and never changes. The entry under `"sentences"` has tensors `[B, ...]`,
which searches neither repeat nor reorder.
"""

import functools
import numbers
from typing import NamedTuple

import keras
from keras import ops

from t2t_relpos import _checks, backend
from t2t_relpos.backend import as_size, take_rows


class Request(NamedTuple):
    """The arguments of all searches.

    Attributes:
        step: `step(ids [rows], state) -> (logits [rows, V], state)`.
        state: a nested dict of tensors `[B, ...]`.
        batch_size: B, an int or a scalar tensor.
        max_length: L, an int or a scalar tensor.
        limit: int32 `[B]`, largest number of ids of each sentence, at most L.
        constraints: `Constraints`, with a prefix for each sentence.
    """

    step: object
    state: dict
    batch_size: object
    max_length: object
    limit: object
    constraints: object

    @classmethod
    def checked(cls, step, state, sizes, length_limit, constraints):
        """Returns the request with these arguments of a search.

        Args:
            step: as in `beam_search`.
            state: as in `beam_search`.
            sizes: `batch_size` and `max_length`, as in `beam_search`.
            length_limit: as in `beam_search`.
            constraints: `Constraints` with the ids of the search.

        Raises:
            ValueError: if a size is no integer or out of range, the prefix has another batch size,
                or the state is too small.
        """
        batch_size, max_length = _checked_sizes(*sizes)
        prefix = constraints.prefix
        if prefix is not None and _checks.differ(prefix.shape[0], batch_size):
            raise ValueError(
                f"Expected `prefix` with a row for each of the {batch_size} sentences. Received: "
                f"shape {tuple(prefix.shape)}."
            )
        _check_capacity(step, state, max_length, length_limit)
        limit = _limits(batch_size, max_length, length_limit)
        return cls(step, state, batch_size, max_length, limit, constraints)


def run(selection, request):
    """Runs a search until each sentence is done. Returns its `DecodingResult`.

    Args:
        selection: a selection, as described above.
        request: a `Request`.
    """
    first_rows = selection.first_rows(request)
    context, rest = split_context(repeat_rows(request.state, first_rows))
    # Tensors that no step changes, by row.
    fixed = dict(selection.fixed)
    if context is not None:
        fixed["context"] = context
    if request.constraints.prefix is not None:
        fixed["prefix"] = ops.repeat(request.constraints.prefix, selection.num_rows, axis=0)

    def advance(i, hypotheses, limit, fixed, rest):
        last = ops.reshape(hypotheses["last"], (-1,))
        logits, state = request.step(last, join_context(fixed.get("context"), rest))
        hypotheses, rows = selection.advance(hypotheses, i, logits, limit, fixed)
        rest = split_context(state)[1]
        return hypotheses, rest if rows is None else gather_rows(rest, rows)

    start = selection.start(request.limit, first_rows), request.limit, fixed, rest
    # Only TensorFlow without XLA may change the sizes of tensors between steps.
    if backend.has_dynamic_shapes():
        from t2t_relpos.decoding import tensorflow

        return selection.result(tensorflow.until_done(advance, *start, selection.RESULT_ENTRIES))
    resize = _method_of_step(request.step, "resize")
    return selection.result(_until_done(advance, *start, request.max_length, resize))


# Steps of the first loop. Each further loop doubles the number.
FIRST_STEPS = 16


def _until_done(advance, hypotheses, limit, fixed, rest, max_length, resize):
    """Advances all sentences until each is done.

    Args:
        advance: `advance(i, hypotheses, limit, fixed, rest) -> (hypotheses, rest)`, one step.
        hypotheses: dict of tensors `[B, ...]` with `"done"`, bool `[B]`.
        limit: int32 `[B]`, maximum number of steps of each sentence.
        fixed: nested dict of tensors `[rows, ...]` that no step changes.
        rest: nested dict of tensors `[rows, ...]`, and `[B, ...]` under `"sentences"`: the state of
            the model.
        max_length: maximum number of steps of all sentences.
        resize: `resize(rest, steps)`, which returns `rest` with space for that many steps, or None.
            The initial state has space for all steps. Each loop gets a state with space up to its
            own end, so that short searches have small tensors.

    Returns:
        The hypotheses. Those of a sentence are from the step in which it was done or from a later
        one.
    """

    def step(i, hypotheses, rest):
        return i + 1, *advance(i, hypotheses, limit, fixed, rest)

    i = ops.convert_to_tensor(0, dtype="int32")
    for end in _loop_ends(max_length, resize):
        rest = rest if resize is None else resize(rest, end)
        hypotheses, rest = _without_constants((hypotheses, rest))
        proceed = functools.partial(_is_before, end)
        i, hypotheses, rest = ops.while_loop(proceed, step, (i, hypotheses, rest))
    return hypotheses


def _without_constants(nested):
    """Returns nested tensors without constants of TensorFlow's graph.

    TensorFlow 2.21 with XLA fails if one loop after another passes on the same constant.
    """
    return keras.tree.map_structure(backend.hide_constant, nested)


def _is_before(end, i, hypotheses, rest):
    """Returns whether a loop that ends before step `end` continues."""
    return ops.logical_and(i < end, ops.logical_not(ops.all(hypotheses["done"])))


def _loop_ends(max_length, resize):
    """Returns the step before which each loop ends."""
    ends, end = [], FIRST_STEPS
    while resize is not None and end < max_length:
        ends.append(end)
        end *= 2
    return [*ends, max_length]


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


def _checked_sizes(batch_size, max_length):
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


def _limits(batch_size, max_length, length_limit):
    """Returns the largest number of ids of each sentence, int32 `[B]`."""
    limit = ops.zeros((batch_size,), dtype="int32") + max_length
    if length_limit is None:
        return limit
    return ops.minimum(ops.cast(length_limit, "int32"), limit)


def _method_of_step(step, name):
    """Returns attribute `name` of a step function, or of its object if it is a method, or None."""
    return getattr(getattr(step, "__self__", step), name, None)


def _check_capacity(step, state, max_length, length_limit):
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
    capacity_of = _method_of_step(step, "capacity")
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
