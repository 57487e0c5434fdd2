"""What all searches share: the request, the loop, the result, and rows of a decoding state.

A search runs a step function, and a selection chooses the ids: `Beams` of `beam_search.py`, or
`SinglePath` of `sample_search.py`. A selection has these members:

- `num_rows`: hypotheses per sentence, an int or a scalar tensor.
- `first_rows`: number of rows per sentence in the first step. It is `num_rows` or, if all first
  rows are equal, possibly 1.
- `row_inputs`: a dict of tensors `[B * num_rows, ...]` that `advance` reads, and no step changes.
- `RESULT_ENTRIES`: names of the entries of hypotheses that `result` reads.
- `start(limit)`: the hypotheses before the first step, a dict of tensors `[B, ...]`. It has the
  `last` ids, int `[B, first_rows]`, and `done`, bool `[B]`. `limit`, int `[B]`, is the largest
  number of ids of each sentence.
- `advance(hypotheses, i, logits, limit, fixed)`: the hypotheses after step `i`, and the index of
  the row that each of them extends, int `[B * num_rows]`, or None if each extends its own row.
  `logits` are `[rows, V]`. `fixed` has the entries of `row_inputs`, the `context` of the state, and
  the `prefix` of each row, int `[rows, P]`, where they exist.
- `result(hypotheses)`: the `DecodingResult`.

A state is a nested dict of tensors `[rows, ...]`, except under `"sentences"`. Tensors there are
`[B, ...]`, and searches neither repeat nor reorder them. The entry under `"context"` is the same
for all hypotheses of a sentence and never changes.
"""

import functools
import numbers
from typing import NamedTuple

import keras
from keras import ops

from t2t_relpos import _checks, backend
from t2t_relpos.backend import as_size, take_rows


class DecodingResult(NamedTuple):
    """Outputs of a search, best first; with `sample_search` in the order drawn.

    Finished outputs of a beam search, which end with an end id, come first, even with lower scores.
    If there are fewer than n outputs, the last entries have none: they have padding, length 0 and
    the score -1e7. With `t2t_exact`, only finished outputs count.

    Attributes:
        ids: int32 `[B, n, L]`, end of sentence included, then padded with `pad_id`.
        scores: float32 `[B, n]`, higher is better.
        lengths: int32 `[B, n]`, number of ids, end of sentence included.

    Example:
    >>> import numpy as np
    >>> from keras import ops
    >>> from t2t_relpos.decoding import greedy_search
    >>> step = lambda ids, state: (ops.log([[0.1, 0.7, 0.2]]), state)
    >>> result = greedy_search(step, {"none": np.zeros((1, 1))}, 1, 3)
    >>> [ops.convert_to_numpy(x).tolist() for x in (result.ids, result.lengths)]
    [[[[1, 0, 0]]], [[1]]]
    """

    ids: object
    scores: object
    lengths: object


class Request:
    """The checked arguments of a search.

    Args:
        step, state, batch_size, max_length, length_limit: as in `beam_search`.
        constraints: `Constraints`, with a prefix for each sentence.

    Attributes:
        limit: int32 `[B]`, largest number of ids of each sentence, at most `max_length`.

    Raises:
        ValueError: if a size is no integer or out of range, the prefix has another batch size, or
            the state is too small. Values of tensors are not checked.
    """

    def __init__(self, step, state, batch_size, max_length, length_limit, constraints):
        if isinstance(batch_size, numbers.Number) and not _checks.is_count(batch_size):
            raise ValueError(
                "Expected `batch_size` to be an int of at least 0 or a scalar tensor. Received: "
                f"batch_size={batch_size!r}"
            )
        if not ops.is_tensor(max_length):
            max_length = _checks.positive_int(max_length, "max_length")
        batch_size, max_length = as_size(batch_size), as_size(max_length)
        prefix = constraints.prefix
        if prefix is not None and _checks.differ(prefix.shape[0], batch_size):
            raise ValueError(
                f"Expected `prefix` with a row for each of the {batch_size} sentences. Received: "
                f"shape {tuple(prefix.shape)}."
            )
        limit = ops.zeros((batch_size,), dtype="int32") + max_length
        if length_limit is None:
            _check_capacity(step, state, max_length)
        else:
            limit = ops.minimum(ops.cast(length_limit, "int32"), limit)
        self.step = step
        self.state = state
        self.batch_size = batch_size
        self.max_length = max_length
        self.limit = limit
        self.constraints = constraints


def run(selection, request):
    """Runs a search until each sentence is done. Returns its `DecodingResult`."""
    context, rest = split_context(repeat_rows(request.state, selection.first_rows))
    # Tensors with an entry per row that no step changes.
    fixed = dict(selection.row_inputs)
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

    start = selection.start(request.limit), request.limit, fixed, rest
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
        rest: the state of the model without context.
        max_length: maximum number of steps of all sentences.
        resize: `resize(rest, steps)`, which returns `rest` with space for that many steps, or None.
            The initial state has space for all steps. The first call cuts it to the steps of the
            first loop, and later calls enlarge it, so that short searches have small tensors.

    Returns:
        The hypotheses. Those of a sentence may include steps after it was done.
    """

    def step(i, hypotheses, rest):
        return i + 1, *advance(i, hypotheses, limit, fixed, rest)

    i = ops.convert_to_tensor(0, dtype="int32")
    for end in _loop_ends(max_length, resize):
        rest = rest if resize is None else resize(rest, end)
        # TensorFlow 2.21 with XLA fails if one loop after another passes on the same constant.
        hypotheses, rest = keras.tree.map_structure(backend.hide_constant, (hypotheses, rest))
        proceed = functools.partial(_is_before, end)
        i, hypotheses, rest = ops.while_loop(proceed, step, (i, hypotheses, rest))
    return hypotheses


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


def _method_of_step(step, name):
    """Returns attribute `name` of a step function; of its object, if it is a method; or None."""
    return getattr(getattr(step, "__self__", step), name, None)


def _check_capacity(step, state, max_length):
    """Raises ValueError if a state is known to have room for fewer steps than a search may take.

    A compiled step past the end of its cache can't raise an error: its outputs are NaN.
    """
    capacity_of = _method_of_step(step, "capacity")
    capacity = None if capacity_of is None else capacity_of(state)
    if not all(isinstance(size, numbers.Integral) for size in (capacity, max_length)):
        return
    if capacity < max_length:
        raise ValueError(
            f"Expected a state with room for max_length={max_length} steps. Received: room for "
            f"{capacity}. Pass max_length={max_length} to `encode`, or max_length={capacity} to "
            "the search."
        )
