"""A language model small enough to enumerate all of its outputs."""

from typing import NamedTuple

import numpy as np
import pytest
from keras import ops

VOCAB, LENGTH, BATCH = 5, 4, 3


def log_softmax(logits):
    """Returns log-probabilities of logits `[..., V]` in float64."""
    exponentials = np.exp(logits.astype("float64"))
    return np.log(exponentials / exponentials.sum(-1, keepdims=True) + 1e-300)


class Rules(NamedTuple):
    """Search constraints, implemented as a plain Python loop."""

    min_length: int = 0
    prefix: tuple = ()
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0

    def choices(self, logits, ids):
        """Returns the ids that may follow `ids`, as `{id: log-probability}`."""
        position, n = len(ids), self.no_repeat_ngram_size
        if position < len(self.prefix):
            return {self.prefix[position]: log_softmax(logits)[self.prefix[position]]}
        penalty, is_old = self.repetition_penalty, np.isin(np.arange(len(logits)), ids)
        penalized = np.where(logits > 0, logits / penalty, logits * penalty)
        log_probs = log_softmax(np.where(is_old, penalized, logits))
        seen = {tuple(ids[i : i + n]) for i in range(position - n + 1)}
        found = {}
        for token in range(1, len(log_probs)):
            too_early = token == 1 and position < self.min_length
            repeats = n > 0 and tuple([*ids, token][-n:]) in seen
            if not too_early and not repeats:
                found[token] = log_probs[token]
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

    def next_log_probs(self, sentence, ids):
        """Returns log-probabilities `[V]` of the id after `ids`."""
        return log_softmax(self.next_logits(sentence, ids))

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


@pytest.fixture
def language():
    return Language(1)


@pytest.fixture(params=[1, 2, 3])
def any_language(request):
    """Returns languages in which a search takes different branches."""
    return Language(request.param)


@pytest.fixture(scope="session")
def make_language():
    """Returns `make_language(seed)`, which returns a `Language`."""
    return Language


@pytest.fixture(scope="session")
def make_rules():
    """Returns `make_rules(min_length=2, ...)`, which returns `Rules`."""
    return Rules
