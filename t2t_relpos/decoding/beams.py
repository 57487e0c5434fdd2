"""The hypotheses of a beam search: scores, selection and the stopping rule."""

from typing import NamedTuple

import keras
from keras import ops

from t2t_relpos.decoding.constraints import (
    EXCLUDED_BELOW,
    LOWEST_LOGIT,
    MASKED,
    is_one_of,
    next_ids,
)
from t2t_relpos.decoding.results import NO_OUTPUT_SCORE, DecodingResult, length_penalty
from t2t_relpos.decoding.search_state import take_beams, top_k

# The entries of the hypotheses that `Beams.result` reads.
RESULT_ENTRIES = ("result_ids", "result_scores", "is_result", "length")


class Beams:
    """Selection of the active hypotheses and the results of each sentence, with the stopping rule.

    The hypotheses are a dict of tensors `[B, ...]`. Each sentence has k active ones: their `ids`,
    `last` ids and `log_probs`, and `is_active`, which is False if there are fewer. It has k
    results: `result_ids`, `result_scores`, and `is_result`, which is False if there are fewer.
    Results are finished outputs and, at the limit, unfinished ones. `length` is the number of
    steps, and `done` says whether the results are final.

    Args:
        beam_size, alpha, num_results, max_length, early_stopping, t2t_exact: see `beam_search`.
        constraints: `Constraints` without a prefix.
    """

    def __init__(self, constraints, **settings):
        self.constraints = constraints
        self.beam_size = settings["beam_size"]
        self.alpha = settings["alpha"]
        self.num_results = settings["num_results"]
        self.early_stopping = settings["early_stopping"]
        self.t2t_exact = settings["t2t_exact"]
        self.slots = ops.arange(settings["max_length"], dtype="int32")

    def start(self, limit, beams):
        """Returns the hypotheses before the first step.

        Args:
            limit: int `[B]`, largest number of ids of each sentence.
            beams: number of rows of each sentence, 1 or k. Only the first one is active.
        """
        active, results = (
            ops.zeros_like(limit)[:, None] + ops.arange(size, dtype="int32")
            for size in (beams, self.beam_size)
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

    def advance(self, beams, i, logits, limit, prefix):
        """Extends every active beam by one id.

        Args:
            beams: the hypotheses.
            i: number of steps so far.
            logits: `[B * k, V]`.
            limit: int `[B]`, largest number of ids of each sentence.
            prefix: int `[B * k, P]` or None.

        Returns:
            (the new hypotheses, the rows that the active beams extend, int `[B * k]`).
        """
        found, ends_early = self._candidates(beams, i, logits, prefix)
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
            beams: the hypotheses, or only their `RESULT_ENTRIES`.
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
    >>> from t2t_relpos.decoding.beams import best_candidates
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
    if keras.backend.backend() == "tensorflow":
        from t2t_relpos.decoding import _tensorflow

        if _tensorflow.two_stages_are_faster(scores, count):
            return _tensorflow.best_candidates(
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
    if keras.backend.backend() == "tensorflow":
        # One beam may have fewer than `count` entries. The number is unknown in a graph.
        sums = ops.pad(sums, [[0, 0], [0, count]], constant_values=MASKED)
    best, index = top_k(sums, count)
    if keras.backend.backend() == "tensorflow":
        exists = index < beams * size
        index = ops.minimum(index, beams * size - 1)
    return best, index // size, index % size, exists
