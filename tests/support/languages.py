"""A language model small enough to enumerate all of its outputs."""

import math
from typing import NamedTuple

import numpy as np
from keras import ops

VOCAB, LENGTH, BATCH = 5, 4, 3


def log_softmax(logits):
    """Returns log-probabilities of a list of logits."""
    total = math.log(sum(math.exp(x) for x in logits))
    return [x - total for x in logits]


class Rules(NamedTuple):
    """Search constraints, implemented as a plain Python loop."""

    min_length: int = 0
    prefix: tuple = ()
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0

    def choices(self, logits, ids):
        """Returns the ids that may follow `ids`, as `{id: log-probability}`."""
        position, n, penalty = len(ids), self.no_repeat_ngram_size, self.repetition_penalty
        logits = logits.tolist()
        if position < len(self.prefix):
            return {self.prefix[position]: log_softmax(logits)[self.prefix[position]]}
        for token in {*ids}:
            logits[token] *= penalty if logits[token] <= 0 else 1 / penalty
        seen = {tuple(ids[i : i + n]) for i in range(position - n + 1)}
        found = {}
        for token, log_prob in enumerate(log_softmax(logits)):
            too_early = token == 1 and position < self.min_length
            repeats = n > 0 and tuple([*ids, token][-n:]) in seen
            if token and not too_early and not repeats:
                found[token] = log_prob
        return found


class Language:
    """A model whose logits depend on the sentence, the step and the last two ids."""

    def __init__(self, seed):
        logits = 2 * np.random.default_rng(seed).normal(size=(BATCH, LENGTH, VOCAB, VOCAB, VOCAB))
        self.logits = logits.astype("float32")
        self.logits[..., 0] = -1e9  # padding has probability 0

    def start(self, sentences=np.arange(BATCH, dtype="int32")):
        """Returns the state before the first step. `sentences` may be a tensor."""
        zeros = 0 * sentences
        return {"context": {"sentence": sentences}, "step": zeros, "previous": zeros}

    def step(self, ids, state):
        index = ops.convert_to_tensor(state["context"]["sentence"])
        for size, part in ((LENGTH, state["step"]), (VOCAB, state["previous"]), (VOCAB, ids)):
            index = index * size + part
        logits = ops.take(self.logits.reshape(-1, VOCAB), index, axis=0)
        return logits, {**state, "step": state["step"] + 1, "previous": ids}

    def next_logits(self, sentence, ids):
        """Returns the logits `[V]` of the id after `ids`."""
        previous, last = [0, 0, *ids][-2:]
        return self.logits[sentence, len(ids), previous, last]

    def outputs(self, sentence, limit, choices):
        """Yields (sum, ids) of all outputs of at most `limit` ids.

        Args:
            choices: `choices(logits, ids)` returns the ids that may follow `ids`, as
                `{id: term of the sum}`.
        """
        waiting = [(0.0, [])]
        while waiting:
            total, ids = waiting.pop()
            if ids[-1:] == [1] or len(ids) == limit:
                yield total, ids
                continue
            terms = choices(self.next_logits(sentence, ids), ids)
            waiting += [(total + term, [*ids, token]) for token, term in terms.items()]


STATE = {"x": np.zeros((1, 1))}


def constant_step(row):
    """Returns a step function whose logits are `row` for every sentence. Its state is `STATE`."""
    row = np.array([row], "float32")
    return lambda ids, state: (ops.repeat(row, ops.shape(ids)[0], axis=0), state)
