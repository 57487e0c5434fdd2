"""The loop of beam search over the sentences of a batch."""

import functools

from keras import ops

from t2t_relpos._backend import is_tensorflow_without_xla

# Steps of the first loop. Each further loop doubles the number.
FIRST_STEPS = 16


def until_done(advance, beams, limit, fixed, rest, max_length, resize=None):
    """Advances all sentences until each is done.

    Args:
        advance: `advance(i, beams, limit, fixed, rest) -> (beams, rest)`, one step.
        beams: dict of tensors `[B, ...]` with `"done"`, bool `[B]`.
        limit: int32 `[B]`, maximum number of steps of each sentence.
        fixed: nested dict of tensors `[B * k, ...]` that no step changes.
        rest: nested dict of tensors `[B * k, ...]`, and `[B, ...]` under `"sentences"`: the state
            of the model.
        max_length: maximum number of steps of all sentences.
        resize: `resize(rest, steps)`, which returns `rest` with space for that many steps, or None.
            With it, short searches have small tensors although loops can't change shapes.

    Returns:
        The beams, or only the entries that `Beams.result` reads. The entries of a sentence are from
        the step in which it was done or from a later one.
    """
    # Only TensorFlow graphs without XLA may change the sizes of tensors between steps.
    if is_tensorflow_without_xla():
        from t2t_relpos.decoding import _tensorflow_search_loop

        return _tensorflow_search_loop.until_done(advance, beams, limit, fixed, rest)

    def step(i, beams, rest):
        return i + 1, *advance(i, beams, limit, fixed, rest)

    i = ops.convert_to_tensor(0, dtype="int32")
    for end in _loop_ends(max_length, resize):
        rest = rest if resize is None else resize(rest, end)
        proceed = functools.partial(_is_before, end)
        i, beams, rest = ops.while_loop(proceed, step, (i, beams, rest))
    return beams


def _is_before(end, i, beams, rest):
    """Returns whether a loop that ends before step `end` continues."""
    return ops.logical_and(i < end, ops.logical_not(ops.all(beams["done"])))


def _loop_ends(max_length, resize):
    """Returns the step before which each loop ends."""
    ends, end = [], FIRST_STEPS
    while resize is not None and end < max_length:
        ends.append(end)
        end *= 2
    return [*ends, max_length]
