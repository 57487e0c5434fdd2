"""The loop of a search over many sentences."""

from keras import ops

from t2t_relpos._backend import is_tensorflow_without_xla

# Steps of the first loop. Every further loop has room for twice as many.
FIRST_STEPS = 16


def until_done(advance, beams, limit, fixed, rest, beam_size, max_length, resize=None):
    """Advances all sentences until each is done.

    Args:
        advance: `advance(i, beams, limit, fixed, rest) -> (beams, rest)`, one step.
        beams: dict of tensors `[B, ...]` with `"done"`, bool `[B]`.
        limit: int32 `[B]`, maximum number of steps of each sentence.
        fixed: nested dict of tensors `[B * k, ...]` that no step changes.
        rest: nested dict of tensors `[B * k, ...]`, and `[B, ...]` under `"sentences"`: the state
            of the model.
        beam_size: k.
        max_length: maximum number of steps of all sentences.
        resize: `resize(rest, steps)` returns `rest` with room for so many steps, or None. It keeps
            the tensors of short searches small where loops can't change shapes.

    Returns:
        The beams, or the part of them that `Beams.result` reads. The entries of a sentence are from
        the step in which it was done or a later one.
    """
    # Tensors change their sizes from step to step.
    if is_tensorflow_without_xla():
        from t2t_relpos.decoding import _tensorflow_search_loop

        return _tensorflow_search_loop.until_done(advance, beams, limit, fixed, rest, beam_size)
    start = ops.convert_to_tensor(0, dtype="int32"), beams, rest
    return _Loops(advance, limit, fixed, resize).run(start, _loop_ends(max_length, resize))


def _loop_ends(max_length, resize):
    """Returns the step before which each of a sequence of loops ends."""
    ends, end = [], FIRST_STEPS
    while resize is not None and end < max_length:
        ends.append(end)
        end *= 2
    return [*ends, max_length]


class _Loops:
    """A sequence of loops. The arguments are those of `until_done`."""

    def __init__(self, advance, limit, fixed, resize):
        self.advance = advance
        self.limit = limit
        self.fixed = fixed
        self.resize = resize

    def run(self, start, ends):
        """Returns the beams after loops that end before the steps `ends`.

        Args:
            start: (number of steps made, beams, rest).
            ends: ascending list of steps.
        """
        i, beams, rest = start
        end, *later = ends
        if self.resize is not None:
            rest = self.resize(rest, end)

        def proceed(i, beams, rest):
            return ops.logical_and(i < end, ops.logical_not(ops.all(beams["done"])))

        i, beams, rest = ops.while_loop(proceed, self.step, (i, beams, rest))
        if not later:
            return beams
        return ops.cond(
            ops.all(beams["done"]), lambda: beams, lambda: self.run((i, beams, rest), later)
        )

    def step(self, i, beams, rest):
        """Makes one step of all sentences."""
        return i + 1, *self.advance(i, beams, self.limit, self.fixed, rest)
