"""Beam search with length penalty for any model with a step function."""

import functools

from keras import ops

from t2t_relpos import _checks
from t2t_relpos._backend import as_size, is_tensorflow_without_xla
from t2t_relpos.decoding.beams import RESULT_ENTRIES, Beams
from t2t_relpos.decoding.constraints import checked_constraints
from t2t_relpos.decoding.search_state import (
    check_capacity,
    gather_rows,
    join_context,
    limits,
    method_of_step,
    repeat_rows,
    split_context,
)


def beam_search(
    step,
    state,
    batch_size,
    max_length,
    *,
    beam_size=4,
    alpha=0.6,
    eos_id=1,
    pad_id=0,
    length_limit=None,
    num_results=1,
    early_stopping=False,
    t2t_exact=False,
    min_length=0,
    prefix=None,
    no_repeat_ngram_size=0,
    repetition_penalty=1.0,
    stop_token_ids=None,
):
    """Returns the outputs with the largest log-probability over length penalty.

    The result of a sentence does not depend on the other sentences of the batch. Each sentence
    stops at its own limit at the latest. In TensorFlow graphs without XLA, finished sentences are
    removed from the batch.

    Args:
        step: `step(ids [rows], state) -> (logits [rows, V], state)` with
            rows = B * beam_size. The first ids are `pad_id`. It may be an object, or a method of
            one, with a method `resize(state, steps) -> state`: compiled searches then start with a
            state for a few steps and enlarge it; and with a method `capacity(state)`, the number of
            steps that the state has room for: searches check it if the number is an int.
        state: a nested dict of tensors `[B, ...]`. The search repeats and
            reorders rows. The entry under `"context"` never changes and is
            the same for all beams of a sentence, so it is only repeated. The
            entry under `"sentences"` has one row per sentence. The step may
            change it; the search neither repeats nor reorders it.
        batch_size: B, an int or a scalar tensor.
        max_length: L, largest number of ids of an output, an int or a scalar tensor.
        beam_size: k, an int or a scalar tensor. Values of tensors are not checked. Default: 4.
        alpha: exponent of the length penalty, at least 0; 0 for none. Default: 0.6.
        eos_id: id that ends an output. Default: 1.
        pad_id: padding after the end; never chosen. Default: 0.
        length_limit: int `[B]`, largest number of ids of each sentence; default
            `max_length`.
        num_results: n, at most `beam_size`, an int or a scalar tensor. Values of tensors are not
            checked. Default: 1.
        early_stopping: True: a sentence stops as soon as it has `beam_size` finished outputs. This
            takes fewer steps and sometimes finds a less likely output. CTranslate2 does the same,
            but only accepts ends among the best `beam_size` candidates of a step. False: a sentence
            stops when no active beam can beat its `num_results` best finished outputs, even with
            the length penalty of the limit (t2t). Default: False.
        t2t_exact: whether to follow tensor2tensor: padding may be chosen, a sentence stops only
            when all sentences of the batch can stop, the score of an unfinished output is its
            log-probability without penalty, and unfinished outputs are returned only if none
            finished. The result of a sentence then depends on the batch. With `beam_size` of at
            least the size of the vocabulary, results may differ. Default: False.
        min_length: smallest number of ids before the end of sentence, an int or a scalar tensor.
            Default: 0.
        prefix: int `[B, P]`, padded at the end: the first ids of each output. The score includes
            their log-probabilities, except for ids that the model excludes (see below). Limits
            apply to them; other constraints do not. Default: None.
        no_repeat_ngram_size: n; no sequence of n ids occurs twice. With 0, any may repeat. Default:
            0.
        repetition_penalty: penalty of ids that already occurred, above 0. Before the softmax, their
            positive logits are divided by it, and negative ones are multiplied by it (Keskar et al.
            2019, as in CTranslate2). Default: 1.0.
        stop_token_ids: tuple of ids that end an output, instead of `eos_id`. With `()`, outputs
            end at the limit. Default: None, `eos_id`.

    A model excludes an id if its log-probability is below -1e4, for example because of a logit of
    -1e9 or -inf. Such an id is only chosen if the constraints allow no other. It does not count in
    the score then.

    The search can be compiled with `tf.function` or `jax.jit`. On JAX, an eager search compiles its
    loop in every call, which takes about a second.

    Returns:
        A `DecodingResult` of the n best: ids `[B, n, L]`. Scores are
        log-probabilities over length penalty. If fewer than n outputs
        finished within the limit, unfinished ones follow, best first.

    Raises:
        ValueError: if the beam size is below 1, n is above it, alpha is below 0, an end id is equal
            to `pad_id`, a constraint is out of range, `length_limit`, a constraint or several end
            ids are combined with `t2t_exact`, or the state has room for fewer than `max_length`
            steps and no `length_limit` is given.

    Reference: t2t `beam_search.beam_search`.

    Example:
    >>> import numpy as np
    >>> from keras import ops
    >>> from t2t_relpos.decoding import beam_search
    >>> table = np.log([[0.1, 0.2, 0.7], [0.1, 0.8, 0.1], [0.1, 0.8, 0.1]]).astype("float32")
    >>> step = lambda ids, state: (ops.take(table, ids, axis=0), state)
    >>> result = beam_search(step, {"none": np.zeros((1, 1))}, 1, 5, beam_size=2)
    >>> ops.convert_to_numpy(result.ids).tolist()
    [[[2, 1, 0, 0, 0]]]
    """
    if not (ops.is_tensor(beam_size) or ops.is_tensor(num_results)):
        check_sizes("beam_size", beam_size, num_results)
        beam_size, num_results = int(beam_size), int(num_results)
    sizes = batch_size, max_length, beam_size, num_results
    batch_size, max_length, beam_size, num_results = map(as_size, sizes)
    check_alpha(alpha)
    constraints = checked_constraints(min_length, prefix, no_repeat_ngram_size, repetition_penalty)
    constraints = constraints.with_ids(eos_id, stop_token_ids, pad_id, batch_size)
    if t2t_exact:
        _check_exact(length_limit, early_stopping, constraints)
    check_capacity(step, state, max_length, length_limit)
    search = Beams(
        constraints._replace(prefix=None),
        beam_size=beam_size,
        alpha=alpha,
        num_results=num_results,
        max_length=max_length,
        early_stopping=early_stopping,
        t2t_exact=t2t_exact,
    )
    limit = limits(batch_size, max_length, length_limit)
    return _run(search, step, state, limit, max_length, constraints.prefix)


def _run(search, step, state, limit, max_length, prefix):
    """Runs the loop of the search and returns its result."""
    first_beams = _num_first_beams(search, state, prefix)
    context, rest = split_context(repeat_rows(state, first_beams))
    fixed = _fixed(context, prefix, search.beam_size)

    def advance(i, beams, limit, fixed, rest):
        last = ops.reshape(beams["last"], (-1,))
        logits, new_state = step(last, join_context(fixed.get("context"), rest))
        beams, rows = search.advance(beams, i, logits, limit, fixed.get("prefix"))
        return beams, gather_rows(split_context(new_state)[1], rows)

    beams = search.start(limit, first_beams)
    resize = method_of_step(step, "resize")
    beams = until_done(advance, beams, limit, fixed, rest, max_length, resize)
    return search.result(beams)


def _num_first_beams(search, state, prefix):
    """Returns the number of rows per sentence in the first step.

    All beams are equal in the first step. One row is enough if sizes may change.
    """
    sizes_may_change = is_tensorflow_without_xla() and "context" not in state and prefix is None
    return 1 if sizes_may_change else search.beam_size


def _fixed(context, prefix, beam_size):
    """Returns the tensors that no step changes: the model's context and the prefix, by row."""
    fixed = {} if context is None else {"context": context}
    if prefix is not None:
        fixed["prefix"] = ops.repeat(prefix, beam_size, axis=0)
    return fixed


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
        from t2t_relpos.decoding import _tensorflow

        return _tensorflow.until_done(advance, beams, limit, fixed, rest, RESULT_ENTRIES)

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


def _check_exact(length_limit, early_stopping, constraints):
    if length_limit is not None:
        raise ValueError(
            "Expected no `length_limit` with `t2t_exact`: tensor2tensor has one limit for all "
            "sentences, `max_length`. Received: both."
        )
    if early_stopping:
        raise ValueError(
            "Expected `early_stopping` to be False with `t2t_exact`: tensor2tensor stops when no "
            "active beam can win. Received: both."
        )
    if len(constraints.end_ids) != 1:
        raise ValueError(
            "Expected one end id with `t2t_exact`: tensor2tensor has one. Received: "
            f"stop_token_ids={constraints.end_ids}"
        )
    if constraints.any:
        raise ValueError(
            "Expected none of `min_length`, `prefix`, `no_repeat_ngram_size` and "
            "`repetition_penalty` with `t2t_exact`: tensor2tensor does not support them. "
            "Received: both."
        )


def check_alpha(alpha):
    """Raises ValueError if the exponent of the length penalty is known and below 0 or infinite.

    The stopping rule assumes that the penalty grows with the length.
    """
    if not ops.is_tensor(alpha) and not 0 <= alpha < float("inf"):
        raise ValueError(
            "Expected `alpha` of at least 0 (0: no length penalty), and finite. Received: "
            f"{alpha!r}"
        )


def check_sizes(name, beam_size, num_results):
    """Raises ValueError unless both are integers with 1 <= num_results <= beam_size.

    Args:
        name: name of the argument `beam_size`.
        beam_size: number of hypotheses per sentence.
        num_results: number of outputs per sentence.
    """
    _checks.positive_int(beam_size, name)
    _checks.positive_int(num_results, "num_results")
    if num_results > beam_size:
        raise ValueError(
            f"Expected `num_results` to be at most `{name}`, {beam_size}. Received: {num_results}"
        )
