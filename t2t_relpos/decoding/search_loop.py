"""The loop of a search over many sentences."""

from keras import ops

from t2t_relpos._backend import is_tensorflow_without_xla


def until_done(advance, beams, limit, fixed, rest, beam_size, max_length):
    """Advances all sentences until each is done.

    Args:
        advance: `advance(i, beams, limit, fixed, rest) -> (beams, rest)`, one step.
        beams: dict of tensors `[B, ...]` with `"done"`, bool `[B]`.
        limit: int32 `[B]`, most steps of a sentence.
        fixed: nested dict of tensors `[B * k, ...]`, the same in every step.
        rest: nested dict of tensors `[B * k, ...]`, but `[B, ...]` under
            `"sentences"`; what else a step takes and gives.
        beam_size: k.
        max_length: no sentence takes more steps.

    Returns:
        the beams, or what `Beams.result` reads of them; each sentence's are those
        with which it was done, or later ones.
    """
    # Tensors change their sizes from step to step.
    if is_tensorflow_without_xla():
        from t2t_relpos.decoding import _tensorflow_search_loop

        return _tensorflow_search_loop.until_done(advance, beams, limit, fixed, rest, beam_size)

    def proceed(i, beams, rest):
        return ops.logical_and(i < max_length, ops.logical_not(ops.all(beams["done"])))

    def step(i, beams, rest):
        return i + 1, *advance(i, beams, limit, fixed, rest)

    start = ops.convert_to_tensor(0, dtype="int32"), beams, rest
    return ops.while_loop(proceed, step, start)[1]
