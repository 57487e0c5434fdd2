"""The hypotheses of a beam search: scores, selection and the stopping rule."""

from keras import ops

from t2t_relpos.decoding.candidates import best_candidates
from t2t_relpos.decoding.constraints import NEVER, constrain
from t2t_relpos.decoding.length_penalty import length_penalty
from t2t_relpos.decoding.result import DecodingResult
from t2t_relpos.decoding.state_rows import take_beams
from t2t_relpos.decoding.top_k import top_k

# The entries of the hypotheses that `Beams.result` reads.
RESULT_ENTRIES = ("finished_ids", "finished_scores", "length")


class Beams:
    """Selection of the active and finished hypotheses of each sentence, with the stopping rule.

    The hypotheses are a dict of tensors `[B, ...]`: `ids`, `last` ids and `log_probs` of the active
    ones, `finished_ids` and `finished_scores` of the best finished ones, `length`, the number of
    steps, and `done`.

    Args:
        beam_size, alpha, eos_id, pad_id, num_results, max_length, early_stopping, t2t_exact: see
            `beam_search`.
        constraints: `Constraints` without a prefix.
    """

    def __init__(self, constraints, **settings):
        self.constraints = constraints
        self.beam_size = settings["beam_size"]
        self.alpha = settings["alpha"]
        self.eos_id = settings["eos_id"]
        self.pad_id = settings["pad_id"]
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
        active, finished = (
            ops.zeros_like(limit)[:, None] + ops.arange(size, dtype="int32")
            for size in (beams, self.beam_size)
        )

        def padding(rows):
            return rows[..., None] * 0 + self.slots * 0 + self.pad_id

        return {
            "ids": padding(active),
            "last": active * 0 + self.pad_id,
            "log_probs": ops.where(active == 0, 0.0, NEVER),
            "finished_ids": padding(finished),
            "finished_scores": ops.cast(finished * 0, "float32") + NEVER,
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
        k = self.beam_size
        top, source, token = self._candidates(beams, i, logits, prefix)
        # If fewer than 2k candidates exist, the others are placeholders and can't end.
        ends = ops.logical_and(token == self.eos_id, top > NEVER / 2)
        ids = ops.where(self.slots == i, token[..., None], take_beams(beams["ids"], source))

        log_probs, index = top_k(ops.where(ends, NEVER, top), k)
        active = {
            "ids": take_beams(ids, index),
            "last": take_beams(token, index),
            "log_probs": log_probs,
        }
        # Ignore later ends of a done sentence: its result would depend on the batch.
        is_valid = ops.logical_and(ends, ops.logical_not(beams["done"])[:, None])
        scores = ops.where(is_valid, top / length_penalty(i + 1, self.alpha), NEVER)
        finished = self._finished(beams, ids, scores)
        new = self._at_limit(beams, {**active, **finished}, i + 1, limit)
        new["done"] = self._done(beams, new, i + 1, limit)
        new["length"] = ops.where(beams["done"], beams["length"], i + 1)
        batch, before = ops.shape(beams["log_probs"])
        first_row = ops.arange(batch, dtype="int32")[:, None] * before
        return new, ops.reshape(first_row + take_beams(source, index), (-1,))

    def _candidates(self, beams, i, logits, prefix):
        """Returns the 2k best continuations: log-probabilities, beams and ids, each `[B, 2k]`.

        At most k of them end, so k active beams remain.
        """
        count = 2 * self.beam_size
        logits = ops.cast(logits, "float32")
        if not self.constraints.any and prefix is None:
            never = None if self.t2t_exact else self.pad_id
            return best_candidates(logits, beams["log_probs"], count, never, normalize=True)
        log_probs = ops.log_softmax(logits, axis=-1)
        rows = ops.reshape(beams["ids"], (-1, ops.shape(beams["ids"])[2]))
        constraints = self.constraints._replace(prefix=prefix)
        log_probs = constrain(log_probs, rows, i, constraints, self.eos_id, self.pad_id)
        return best_candidates(log_probs, beams["log_probs"], count)

    def _finished(self, beams, ids, scores):
        """Returns the k best outputs among those that finished earlier or in this step."""
        scores = ops.concatenate([beams["finished_scores"], scores], axis=1)
        ids = ops.concatenate([beams["finished_ids"], ids], axis=1)
        best, index = top_k(scores, self.beam_size)
        return {"finished_ids": take_beams(ids, index), "finished_scores": best}

    def _at_limit(self, old, new, length, limit):
        """Returns `new`, with the active beams as results if none finished within the limit."""
        none_finished = ops.logical_and(new["finished_scores"][:, 0] < NEVER / 2, length >= limit)
        is_replaced = ops.logical_and(none_finished, ops.logical_not(old["done"]))[:, None]
        scores = new["log_probs"]
        if not self.t2t_exact:
            scores = scores / length_penalty(length, self.alpha)
        return {
            **new,
            "finished_scores": ops.where(is_replaced, scores, new["finished_scores"]),
            "finished_ids": ops.where(is_replaced[..., None], new["ids"], new["finished_ids"]),
        }

    def _done(self, old, new, length, limit):
        """Returns whether the results of each sentence are final."""
        if self.early_stopping:
            is_final = new["finished_scores"][:, -1] > NEVER / 2
        else:
            # Results are final if no active beam can beat them.
            best_possible = new["log_probs"][:, 0] / length_penalty(limit, self.alpha)
            worst_result = ops.take(new["finished_scores"], self.num_results - 1, axis=1)
            is_final = worst_result > best_possible
        if self.t2t_exact:
            is_final = ops.logical_and(is_final, ops.all(is_final))
        return ops.logical_or(old["done"], ops.logical_or(is_final, length >= limit))

    def result(self, beams):
        """Returns the best outputs as a `DecodingResult`.

        Args:
            beams: the hypotheses, or only their `RESULT_ENTRIES`.
        """
        n = self.num_results
        ids = beams["finished_ids"][:, :n]
        ends = ops.cast(ids == self.eos_id, "int32")
        after = ops.cumsum(ends, axis=-1) - ends > 0
        # An output continues after its end if constraints forbid all other ids.
        ids = ops.where(after, self.pad_id, ids)
        # The length of an output without an end is the number of steps.
        has_end = ops.any(ends > 0, axis=-1)
        to_end = ops.sum(ops.cast(ops.logical_not(after), "int32"), axis=-1)
        lengths = ops.where(has_end, to_end, ops.cast(beams["length"], "int32")[:, None])
        scores = beams["finished_scores"][:, :n]
        # Entries without an output.
        is_missing = ops.logical_and(scores < NEVER / 2, ops.all(ids == self.pad_id, axis=-1))
        return DecodingResult(ids, scores, ops.where(is_missing, 0, lengths))
