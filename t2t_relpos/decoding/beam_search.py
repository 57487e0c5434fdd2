"""Beam search with length penalty. Knows no model: it takes a step function."""

from keras import ops

from t2t_relpos.decoding.constraints import NEVER, checked_constraints, constrain
from t2t_relpos.decoding.length_penalty import length_penalty
from t2t_relpos.decoding.one_path import limits
from t2t_relpos.decoding.result import DecodingResult
from t2t_relpos.decoding.rows import (
    gather_rows,
    join_context,
    repeat_rows,
    split_context,
    take_beams,
)
from t2t_relpos.decoding.top_k import top_k


def beam_search(
    step,
    state,
    batch_size,
    max_length,
    beam_size=4,
    alpha=0.6,
    eos_id=1,
    pad_id=0,
    length_limit=None,
    num_results=1,
    t2t_exact=False,
    min_length=0,
    prefix=None,
    no_repeat_ngram_size=0,
    repetition_penalty=1.0,
):
    """Finds likely outputs by log-probability over length penalty.

    Every sentence is searched on its own: it stops when no living beam can
    beat its `num_results` best finished ones, or at its own limit, whatever
    other sentences stand in the batch.

    Args:
        step: `step(ids [rows], state) -> (logits [rows, V], state)` with
            rows = B * beam_size. The first ids are `pad_id`.
        state: a nested dict of tensors `[B, ...]`. The search repeats and
            reorders rows; what stands under `"context"` does not change and is
            the same for all beams of a sentence, so it is only repeated. What
            stands under `"sentences"` is one per sentence, whatever its beams:
            the step may change it, and the search leaves it alone.
        batch_size: B, an int or a scalar tensor.
        max_length: L, most ids of an output, an int or a scalar tensor.
        beam_size: k, an int, or a scalar tensor whose value the caller checked.
        alpha: exponent of the length penalty; 0 for none.
        eos_id: ends an output.
        pad_id: fills up; never chosen.
        length_limit: int `[B]`, most ids of each sentence; default
            `max_length`.
        num_results: n, at most `beam_size`; as that.
        t2t_exact: do as tensor2tensor does in every detail: padding may be
            chosen, no sentence stops before all can, and outputs that did not
            finish have their log-probability as score, without penalty. A
            sentence's result then depends on the batch it sits in.
        min_length: the end of sentence is not chosen before so many ids came
            before it; an int or a scalar tensor.
        prefix: int `[B, P]`, padded at the end: the first ids of each sentence.
            They count with the model's log-probabilities, limits hold for them,
            the other constraints do not.
        no_repeat_ngram_size: n; no n ids in a row occur twice. 0: they may.
        repetition_penalty: what the log-probability of an id that occurred is
            multiplied by; above 0. As `no_repeat_ngram_size`, this is what
            Hugging Face's beam search means by it: log-probabilities are not
            normalised anew, and the penalty counts in the score.

    Returns:
        A `DecodingResult` of the n best: ids `[B, n, L]`. Scores are
        log-probabilities over length penalty; where no beam finished within
        the limit, those of the living beams.

    Raises:
        ValueError: a beam size below 1, n above it, a constraint that is out of
            range, or `length_limit` or a constraint together with `t2t_exact`.

    Reference: t2t `beam_search.beam_search`.

    Example:

    >>> import numpy as np
    >>> from t2t_relpos.decoding import beam_search
    >>> table = np.log([[0.1, 0.2, 0.7], [0.1, 0.8, 0.1], [0.1, 0.8, 0.1]]).astype("float32")
    >>> step = lambda ids, state: (ops.take(table, ids, axis=0), state)
    >>> result = beam_search(step, {"none": np.zeros((1, 1))}, 1, 5, beam_size=2)
    >>> ops.convert_to_numpy(result.ids).tolist()
    [[[2, 1, 0, 0, 0]]]
    """
    _check_sizes(beam_size, num_results)
    constraints = checked_constraints(
        min_length, prefix, no_repeat_ngram_size, repetition_penalty
    )
    if t2t_exact:
        _check_exact(length_limit, constraints)
    if constraints.prefix is not None:
        constraints = constraints._replace(
            prefix=ops.repeat(constraints.prefix, beam_size, axis=0)
        )
    search = _Search(
        beam_size, alpha, eos_id, pad_id, num_results, max_length, t2t_exact, constraints
    )
    context, rest = split_context(repeat_rows(state, beam_size))
    limit = limits(batch_size, max_length, length_limit)

    def proceed(i, beams, rest):
        return ops.logical_and(i < max_length, ops.logical_not(ops.all(beams["done"])))

    def advance(i, beams, rest):
        last = ops.take(beams["ids"], ops.maximum(i - 1, 0), axis=2)
        last = ops.where(i == 0, pad_id, ops.reshape(last, (-1,)))
        logits, new_state = step(last, join_context(context, rest))
        beams, source = search.advance(beams, i, logits, limit)
        first_row = ops.arange(ops.shape(source)[0], dtype="int32")[:, None] * beam_size
        rest = gather_rows(split_context(new_state)[1], ops.reshape(first_row + source, (-1,)))
        return i + 1, beams, rest

    first = ops.convert_to_tensor(0, dtype="int32")
    start = (first, search.start(limit), rest)
    _, beams, _ = ops.while_loop(proceed, advance, start)
    return search.result(beams)


class _Search:
    """The bookkeeping of beams, apart from the model."""

    def __init__(
        self, beam_size, alpha, eos_id, pad_id, num_results, max_length, t2t_exact, constraints
    ):
        self.beam_size = beam_size
        self.alpha = alpha
        self.eos_id = eos_id
        self.pad_id = pad_id
        self.num_results = num_results
        self.t2t_exact = t2t_exact
        self.constraints = constraints
        self.slots = ops.arange(max_length, dtype="int32")

    def start(self, limit):
        """Living and finished beams before the first step: one empty output lives."""
        per_beam = ops.zeros_like(limit)[:, None] + ops.arange(self.beam_size, dtype="int32")
        ids = per_beam[..., None] * 0 + self.slots * 0 + self.pad_id
        never = ops.cast(per_beam * 0, "float32") + NEVER
        return {
            "ids": ids,
            "log_probs": ops.where(per_beam == 0, 0.0, never),
            "lengths": per_beam * 0,
            "finished_ids": ids,
            "finished_scores": never,
            "finished_lengths": per_beam * 0,
            "done": limit <= 0,
        }

    def advance(self, beams, i, logits, limit):
        """One more id for every living beam.

        Returns:
            (the beams, int `[B, k]`: the beam that each living one came from).
        """
        k = self.beam_size
        vocab_size = logits.shape[-1]
        log_probs = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
        if not self.t2t_exact:
            rows = ops.reshape(beams["ids"], (-1, ops.shape(beams["ids"])[2]))
            log_probs = constrain(
                log_probs, rows, i, self.constraints, self.eos_id, self.pad_id
            )
        log_probs = ops.reshape(log_probs, (-1, k, vocab_size)) + beams["log_probs"][..., None]
        # Of 2k candidates at most k end, so k of them live on.
        top, index = top_k(ops.reshape(log_probs, (-1, k * vocab_size)), 2 * k)
        source, token = index // vocab_size, index % vocab_size
        ids = take_beams(beams["ids"], source)
        ids = ops.where(self.slots == i, token[..., None], ids)
        # A beam that never lived (small vocabularies have fewer than 2k candidates) can't end.
        ends = ops.logical_and(token == self.eos_id, top > NEVER / 2)

        living = top_k(ops.where(ends, NEVER, top), k)[1]
        alive = {
            "ids": take_beams(ids, living),
            "log_probs": take_beams(ops.where(ends, NEVER, top), living),
            "lengths": beams["lengths"] * 0 + i + 1,
        }
        scores = ops.where(ends, top / length_penalty(i + 1, self.alpha), NEVER)
        finished = self._finish(beams, ids, scores, i + 1)
        new = self._freeze(beams, {**alive, **finished})
        new["done"] = self._done(beams, new, i + 1, limit)
        return new, take_beams(source, living)

    def _finish(self, beams, ids, scores, length):
        """The best k of the outputs finished earlier and those finished now."""
        all_scores = ops.concatenate([beams["finished_scores"], scores], axis=1)
        best, index = top_k(all_scores, self.beam_size)
        lengths = ops.concatenate(
            [beams["finished_lengths"], ops.cast(scores > NEVER / 2, "int32") * length], axis=1
        )
        all_ids = ops.concatenate([beams["finished_ids"], ids], axis=1)
        return {
            "finished_ids": take_beams(all_ids, index),
            "finished_scores": best,
            "finished_lengths": take_beams(lengths, index),
        }

    def _freeze(self, old, new):
        """Sentences that are done keep what they had."""

        def select(before, after):
            done = ops.reshape(old["done"], (-1, *(1 for _ in after.shape[1:])))
            return ops.where(done, before, after)

        return {name: select(old[name], value) for name, value in new.items()}

    def _done(self, old, new, length, limit):
        """Whether no living beam of a sentence can still enter its results."""
        best_possible = new["log_probs"][:, 0] / length_penalty(limit, self.alpha)
        worst_result = ops.take(new["finished_scores"], self.num_results - 1, axis=1)
        beaten = worst_result > best_possible
        if self.t2t_exact:
            beaten = ops.logical_and(beaten, ops.all(beaten))
        return ops.logical_or(old["done"], ops.logical_or(beaten, length >= limit))

    def result(self, beams):
        """The finished outputs; where there is none, the living ones."""
        none = beams["finished_scores"][:, :1] < NEVER / 2
        living = beams["log_probs"]
        if not self.t2t_exact:
            living = living / length_penalty(beams["lengths"], self.alpha)
        n = self.num_results
        return DecodingResult(
            ids=ops.where(none[..., None], beams["ids"], beams["finished_ids"])[:, :n],
            scores=ops.where(none, living, beams["finished_scores"])[:, :n],
            lengths=ops.where(none, beams["lengths"], beams["finished_lengths"])[:, :n],
        )


def _check_exact(length_limit, constraints):
    if length_limit is not None:
        raise ValueError(
            "Expected no `length_limit` with `t2t_exact`: tensor2tensor has one limit for all "
            "sentences, `max_length`. Received: both."
        )
    if constraints.any:
        raise ValueError(
            "Expected none of `min_length`, `prefix`, `no_repeat_ngram_size` and "
            "`repetition_penalty` with `t2t_exact`: tensor2tensor has none of them. "
            "Received: both."
        )


def _check_sizes(beam_size, num_results):
    if ops.is_tensor(beam_size) or ops.is_tensor(num_results):
        return
    if not isinstance(beam_size, int) or beam_size < 1:
        raise ValueError(f"Expected `beam_size` to be an int of at least 1. Received: {beam_size!r}")
    if not isinstance(num_results, int) or not 1 <= num_results <= beam_size:
        raise ValueError(
            f"Expected `num_results` to be from 1 to beam_size={beam_size}. "
            f"Received: {num_results!r}"
        )
