"""Beam search with length penalty, and the scores of given outputs.

In the order of a call: the search, the hypotheses, and the choice of candidates. `search.py` has
the loop.
"""

from typing import NamedTuple

from keras import ops

from t2t_relpos import _checks, backend
from t2t_relpos._conventions import EOS_ID, NO_OUTPUT_SCORE, PAD_ID
from t2t_relpos.backend import as_size, take_beams, top_k
from t2t_relpos.decoding.constraints import (
    EXCLUDED_BELOW,
    LOWEST_LOGIT,
    MASKED,
    checked_constraints,
    is_one_of,
    next_ids,
)
from t2t_relpos.decoding.search import DecodingResult, Request, run


def beam_search(
    step,
    state,
    batch_size,
    max_length,
    *,
    beam_size=4,
    alpha=0.6,
    eos_id=EOS_ID,
    pad_id=PAD_ID,
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
    stops at its own limit at the latest. On TensorFlow without XLA, finished sentences are removed
    from the batch.

    Args:
        step: `step(ids [rows], state) -> (logits [rows, V], state)` with
            rows = B * beam_size. On TensorFlow without XLA, the first step has rows = B, unless
            there is a prefix or a `"context"`. The first ids are `pad_id`. It may be an object, or
            a method of one, with a method `resize(state, steps) -> state`: compiled searches then
            cut the state to a few steps, and enlarge it later; and with a method
            `capacity(state)`, the number of steps that the state has room for: searches check it if
            the number is an int.
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
        ValueError: if `max_length` or the beam size is below 1, n is above it, alpha is below 0, an
            end id is equal to `pad_id`, a constraint is out of range, `length_limit`, a constraint
            or several end ids are combined with `t2t_exact`, or the state has room for fewer than
            `max_length` steps and no `length_limit` is given.

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
    beam_size, num_results = as_size(beam_size), as_size(num_results)
    check_alpha(alpha)
    constraints = checked_constraints(
        min_length, no_repeat_ngram_size, repetition_penalty, prefix, eos_id, stop_token_ids, pad_id
    )
    if t2t_exact:
        _check_exact(length_limit, early_stopping, constraints)
    request = Request(step, state, batch_size, max_length, length_limit, constraints)
    selection = Beams(
        request,
        beam_size=beam_size,
        alpha=alpha,
        num_results=num_results,
        early_stopping=early_stopping,
        t2t_exact=t2t_exact,
    )
    return run(selection, request)


class Beams:
    """Selection of the active hypotheses and the results of each sentence, with the stopping rule.

    The hypotheses are a dict of tensors `[B, ...]`. Each sentence has k active ones: their `ids`,
    `last` ids and `log_probs`, and `is_active`, which is False if there are fewer. It has k
    results: `result_ids`, `result_scores`, and `is_result`, which is False if there are fewer.
    Results are finished outputs and, at the limit, unfinished ones. `length` is the number of
    steps, and `done` says whether the results are final.

    Args:
        request: the `Request` of the search.
        beam_size, alpha, num_results, early_stopping, t2t_exact: as in `beam_search`.
    """

    RESULT_ENTRIES = ("result_ids", "result_scores", "is_result", "length")

    def __init__(self, request, *, beam_size, alpha, num_results, early_stopping, t2t_exact):
        self.constraints = request.constraints
        self.num_rows = self.beam_size = beam_size
        self.alpha = alpha
        self.num_results = num_results
        self.early_stopping = early_stopping
        self.t2t_exact = t2t_exact
        self.slots = ops.arange(request.max_length, dtype="int32")
        self.row_inputs = {}
        # All beams are equal in the first step. One row is enough if sizes may change. The context
        # and the prefix have a row for each beam from the start.
        has_rows = "context" in request.state or request.constraints.prefix is not None
        self.first_rows = 1 if backend.has_dynamic_shapes() and not has_rows else beam_size

    def start(self, limit):
        """Returns the hypotheses before the first step. Only the first row is active."""
        active, results = (
            ops.zeros_like(limit)[:, None] + ops.arange(size, dtype="int32")
            for size in (self.first_rows, self.beam_size)
        )

        def padding(rows):
            return rows[..., None] * 0 + self.slots * 0 + self.constraints.pad_id

        return {
            "ids": padding(active),
            "last": active * 0 + self.constraints.pad_id,
            "log_probs": ops.cast(active * 0, "float32"),
            "is_active": active == 0,
            "result_ids": padding(results),
            "result_scores": ops.cast(results * 0, "float32"),
            "is_result": results < 0,
            "length": ops.zeros_like(limit),
            "done": limit <= 0,
        }

    def advance(self, beams, i, logits, limit, fixed):
        """Extends every active beam by one id.

        Args:
            beams: the hypotheses.
            i: number of steps so far.
            logits: `[B * k, V]`.
            limit: int `[B]`, largest number of ids of each sentence.
            fixed: dict, with the prefix of each row, int `[B * k, P]`, if there is one.

        Returns:
            (the new hypotheses, the rows that the active beams extend, int `[B * k]`).
        """
        found, ends_early = self._candidates(beams, i, logits, fixed.get("prefix"))
        ids = ops.where(
            self.slots == i, found.ids[..., None], take_beams(beams["ids"], found.beams)
        )
        is_end = is_one_of(found.ids, self.constraints.end_ids)
        ends = ops.logical_and(found.is_valid, is_end)
        continues = ops.logical_and(found.is_valid, ops.logical_not(is_end))
        index = top_k(ops.where(continues, found.sums, MASKED), self.beam_size)[1]
        is_active = take_beams(continues, index)
        new = {
            "ids": take_beams(ids, index),
            "last": take_beams(found.ids, index),
            "log_probs": ops.where(is_active, take_beams(found.sums, index), 0.0),
            "is_active": is_active,
            "length": ops.where(beams["done"], beams["length"], i + 1),
        }
        length = i + 1
        scores = found.sums / length_penalty(length, self.alpha)
        if self.t2t_exact:
            scores = ops.where(ends, scores, found.sums)
        if ends_early is not None:
            scores = ops.where(ends_early[:, None], NO_OUTPUT_SCORE, scores)
        # Ignore later ends of a done sentence: its result would depend on the batch.
        is_open = ops.logical_not(beams["done"])[:, None]
        ends = ops.logical_and(ends, is_open)
        unfinished = index, ops.logical_and(is_active, is_open & (length >= limit)[:, None])
        new |= self._results(beams, ids, scores, ends, unfinished)
        new["done"] = self._done(beams, new, length, limit)
        batch, before = ops.shape(beams["log_probs"])
        first_row = ops.arange(batch, dtype="int32")[:, None] * before
        return new, ops.reshape(first_row + take_beams(found.beams, index), (-1,))

    def _candidates(self, beams, i, logits, prefix):
        """Returns the best continuations and, with constraints, `NextIds.ends_early`.

        There are k more continuations than can end, so k active beams remain.
        """
        constraints = self.constraints._replace(prefix=prefix)
        log_probs, is_active = beams["log_probs"], beams["is_active"]
        count = (1 + min(len(constraints.end_ids), logits.shape[-1] - 1)) * self.beam_size
        if constraints.any:
            rows = ops.reshape(beams["ids"], (-1, ops.shape(beams["ids"])[2]))
            following = next_ids(logits, rows, i, constraints, is_active)
            ends_early = following.ends_early
            found = best_candidates(
                following.log_probs, log_probs, is_active, count, allowed=following.allowed
            )
        else:
            ends_early = None
            never = None if self.t2t_exact else constraints.pad_id
            logits = ops.cast(logits, "float32")
            found = best_candidates(
                logits, log_probs, is_active, count, never_id=never, normalize=True
            )
        return self._without_excluded(found, beams), ends_early

    def _without_excluded(self, found, beams):
        """Returns continuations without ids that the model excludes.

        If it excludes all allowed ids, these remain, unless the sentence has a result. They do not
        count in the sums.
        """
        before = take_beams(beams["log_probs"], found.beams)
        is_possible = found.sums - before > EXCLUDED_BELOW
        is_likely = ops.logical_and(found.is_valid, is_possible)
        is_choice = ops.any(is_likely, axis=1, keepdims=True)
        is_choice = ops.logical_or(is_choice, beams["is_result"][:, :1])
        return found._replace(
            sums=ops.where(is_possible, found.sums, before),
            is_valid=ops.where(is_choice, is_likely, found.is_valid),
        )

    def _results(self, old, ids, scores, ends, unfinished):
        """Returns the new results: the best finished outputs, then unfinished ones.

        Args:
            old: the previous hypotheses.
            ids: int `[B, n, L]`, outputs of this step.
            scores: `[B, n]`, their scores.
            ends: bool `[B, n]`, whether they are finished.
            unfinished: indices of the others `[B, k]`, best first, and whether they are results.
        """
        ids = ops.concatenate([old["result_ids"], ids], axis=1)
        scores = ops.concatenate([old["result_scores"], scores], axis=1)
        is_result = ops.concatenate([old["is_result"], ends], axis=1)
        index = top_k(ops.where(is_result, scores, MASKED), self.beam_size)[1]
        # Results of a done sentence keep their order: unfinished ones are last.
        slots = ops.arange(self.beam_size, dtype="int32")
        index = ops.where(old["done"][:, None], slots, index)
        is_result = take_beams(is_result, index)
        count = ops.sum(ops.cast(is_result, "int32"), axis=1, keepdims=True)
        other = ops.maximum(slots - ops.cast(count, "int32"), 0)
        other_index, is_other = (take_beams(x, other) for x in unfinished)
        is_other = ops.logical_and(is_other, slots >= count)
        if self.t2t_exact:
            is_other = ops.logical_and(is_other, count == 0)
        index = ops.where(is_other, self.beam_size + other_index, index)
        return {
            "result_ids": take_beams(ids, index),
            "result_scores": take_beams(scores, index),
            "is_result": ops.logical_or(is_result, is_other),
        }

    def _done(self, old, new, length, limit):
        """Returns whether the results of each sentence are final."""
        if self.early_stopping:
            is_final = ops.all(new["is_result"], axis=1)
        else:
            # Results are final if no active beam can beat them.
            best_possible = new["log_probs"][:, 0] / length_penalty(limit, self.alpha)
            worst, exists = (
                ops.take(new[name], self.num_results - 1, axis=1)
                for name in ("result_scores", "is_result")
            )
            is_final = ops.logical_and(exists, worst > best_possible)
        is_final = ops.logical_or(is_final, ops.logical_not(new["is_active"][:, 0]))
        if self.t2t_exact:
            is_final = ops.logical_and(is_final, ops.all(is_final))
        return ops.logical_or(old["done"], ops.logical_or(is_final, length >= limit))

    def result(self, beams):
        """Returns the best outputs as a `DecodingResult`.

        Args:
            beams: the hypotheses, or only the `RESULT_ENTRIES`.
        """
        n, pad_id = self.num_results, self.constraints.pad_id
        ids, scores, exists = (
            beams[name][:, :n] for name in ("result_ids", "result_scores", "is_result")
        )
        is_end = is_one_of(ids, self.constraints.end_ids)
        # The length of an output without an end is the number of steps.
        to_end = ops.cast(ops.argmax(is_end, axis=-1), "int32") + 1
        steps = ops.cast(beams["length"], "int32")[:, None]
        lengths = ops.where(ops.any(is_end, axis=-1), to_end, steps)
        return DecodingResult(
            ops.where(exists[..., None], ids, pad_id),
            ops.where(exists, scores, NO_OUTPUT_SCORE),
            ops.where(exists, lengths, 0),
        )


class Candidates(NamedTuple):
    """Continuations of the beams of each sentence, each `[B, count]`.

    Attributes:
        sums: float32, log-probabilities of the outputs. They have no meaning if not valid.
        beams: int32, the beams that are continued.
        ids: int32, their next ids.
        is_valid: bool, False for forbidden ids and inactive beams.
    """

    sums: object
    beams: object
    ids: object
    is_valid: object


def best_candidates(
    scores, offsets, is_active, count, *, never_id=None, allowed=None, normalize=False
):
    """Returns the best continuations of each sentence over all its beams and ids.

    Args:
        scores: float32 `[B * k, V]`, the score of every id as the next one of a beam.
        offsets: float32 `[B, k]`, added to all scores of a beam.
        is_active: bool `[B, k]`, False for beams that can't be continued.
        count: number of continuations, an int or a scalar tensor, at most `k * V`. On
            TensorFlow it may be larger. The additional ones are not valid.
        never_id: an id that is never chosen.
        allowed: bool `[B * k, V]` or `[1, V]`, False for ids that must not be chosen. The scores
            must be finite. Default: None, all.
        normalize: whether the scores are logits, which are converted to log-probabilities
            first.

    Returns:
        `Candidates`, valid ones first, then by sum. Equal sums are in the order of beams and ids,
        except on TensorFlow, where their order is not defined.

    Example:
    >>> import numpy as np
    >>> from keras import ops
    >>> from t2t_relpos.decoding.beam_search import best_candidates
    >>> scores = np.array([[1.0, 5.0, 3.0], [4.0, 0.0, 1.0]], "float32")
    >>> offsets, is_active = np.array([[0.0, 2.0]], "float32"), np.array([[True, True]])
    >>> found = best_candidates(scores, offsets, is_active, 3)
    >>> [ops.convert_to_numpy(x)[0].tolist() for x in found]
    [[6.0, 5.0, 3.0], [1, 0, 0], [0, 1, 2], [True, True, True]]
    """
    is_active = ops.convert_to_tensor(is_active)
    scores, offsets = ops.convert_to_tensor(scores), ops.convert_to_tensor(offsets)
    size = scores.shape[-1]
    if never_id is not None and not 0 <= never_id < size:
        never_id = None
    arguments = scores, offsets, is_active, count, never_id, allowed
    sums, beams, ids, exists = _select(*arguments, normalize=normalize)
    is_valid = take_beams(is_active, beams)
    if exists is not None:
        is_valid = ops.logical_and(is_valid, exists)
    if never_id is not None:
        is_valid = ops.logical_and(is_valid, ids != never_id)
    if allowed is not None:
        batch, num_beams = ops.shape(offsets)
        allowed = ops.broadcast_to(allowed, ops.shape(scores))
        allowed = ops.reshape(allowed, (batch, num_beams * size))
        is_valid = ops.logical_and(is_valid, take_beams(allowed, beams * size + ids))
    return Candidates(sums, beams, ids, is_valid)


def _select(scores, offsets, is_active, count, never_id, allowed, *, normalize):
    """Returns the sums, beams and ids of `Candidates`, and whether they exist, or None for all."""
    if backend.NAME == "tensorflow":
        from t2t_relpos.decoding import tensorflow

        if tensorflow.two_stages_are_faster(scores, count):
            return tensorflow.best_candidates(
                scores, offsets, is_active, count, never_id, allowed, normalize=normalize
            )
    size = scores.shape[-1]
    if normalize:
        scores = ops.log_softmax(ops.maximum(scores, LOWEST_LOGIT), axis=-1)
    if never_id is not None:
        scores = ops.where(ops.arange(size, dtype="int32") == never_id, MASKED, scores)
    if allowed is not None:
        scores = ops.where(allowed, scores, MASKED)
    batch, beams = ops.shape(offsets)
    sums = ops.reshape(scores, (batch, beams, size)) + ops.expand_dims(offsets, -1)
    sums = ops.where(ops.expand_dims(is_active, -1), sums, MASKED)
    sums, exists = ops.reshape(sums, (batch, beams * size)), None
    if backend.has_dynamic_shapes():
        # One beam may have fewer than `count` entries. The number is unknown in a graph.
        sums = ops.pad(sums, [[0, 0], [0, count]], constant_values=MASKED)
    best, index = top_k(sums, count)
    if backend.has_dynamic_shapes():
        exists = index < beams * size
        index = ops.minimum(index, beams * size - 1)
    return best, index // size, index % size, exists


def _check_exact(length_limit, early_stopping, constraints):
    """Raises ValueError if arguments contradict `t2t_exact`."""
    constraint_names = "`min_length`, `prefix`, `no_repeat_ngram_size` and `repetition_penalty`"
    for is_wrong, expected, reason in (
        (length_limit is not None, "no `length_limit`", "has one limit, `max_length`"),
        (early_stopping, "`early_stopping` to be False", "stops when no active beam can win"),
        (constraints.any, f"none of {constraint_names}", "does not support them"),
    ):
        if is_wrong:
            raise ValueError(
                f"Expected {expected} with `t2t_exact`: tensor2tensor {reason}. Received: both."
            )
    if len(constraints.end_ids) != 1:
        raise ValueError(
            "Expected one end id with `t2t_exact`: tensor2tensor has one. Received: "
            f"stop_token_ids={constraints.end_ids}"
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


def length_penalty(length, alpha):
    """Returns `((5 + length) / 6) ** alpha`.

    Args:
        length: number of ids, int, a scalar or a tensor of any shape.
        alpha: exponent. With 0, there is no penalty.

    Returns:
        float32, of the shape of `length`.

    Reference: Wu et al. 2016, equation 14.

    Example:
    >>> from t2t_relpos.decoding import length_penalty
    >>> float(length_penalty(7, alpha=1.0))
    2.0
    """
    return ((5.0 + ops.cast(length, "float32")) / 6.0) ** alpha


class TokenScores(NamedTuple):
    """Scores of given outputs.

    Attributes:
        token_scores: float32 `[B, T]`, log-probabilities, 0 for padding.
        scores: float32 `[B]`, their sums divided by the length penalty.
        lengths: int32 `[B]`, number of ids, end of sentence included.

    Example:
    >>> from keras import ops
    >>> from t2t_relpos.decoding import score_tokens
    >>> logits = ops.log([[[0.25, 0.25, 0.5], [0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]])
    >>> ops.convert_to_numpy(score_tokens(logits, [[2, 1, 0]]).lengths).tolist()
    [2]
    """

    token_scores: object
    scores: object
    lengths: object


def score_tokens(logits, ids, pad_id=PAD_ID, alpha=0.0):
    """Returns the log-probabilities of ids.

    With the same `alpha`, `scores` are equal to those of `beam_search` without
    repetition penalty. Exception: an id that the model excludes, with a log-probability below -1e4,
    counts here, and does not count in the score of a search that had no other choice.

    Args:
        logits: `[B, T, V]`. `logits[:, t]` predict `ids[:, t]`.
        ids: int `[B, T]`, padded with `pad_id`.
        pad_id: id of padding, which is excluded from scores and lengths. Default: 0.
        alpha: exponent of the length penalty; 0 for none. Default: 0.0.

    Returns:
        `TokenScores`.

    Example:
    >>> from keras import ops
    >>> from t2t_relpos.decoding import score_tokens
    >>> logits = ops.log([[[0.25, 0.25, 0.5], [0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]])
    >>> scores = score_tokens(logits, [[2, 1, 0]])
    >>> ops.convert_to_numpy(ops.exp(scores.token_scores)).round(4).tolist()
    [[0.5, 0.5, 1.0]]
    >>> ops.convert_to_numpy(ops.exp(scores.scores)).round(4).tolist()
    [0.25]
    """
    ids = ops.cast(ids, "int32")
    log_probs = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
    token_scores = ops.take_along_axis(log_probs, ids[..., None], axis=-1)[..., 0]
    is_token = ids != pad_id
    token_scores = ops.where(is_token, token_scores, 0.0)
    lengths = ops.sum(ops.cast(is_token, "int32"), axis=-1)
    scores = ops.sum(token_scores, axis=-1) / length_penalty(lengths, alpha)
    return TokenScores(token_scores, scores, lengths)
