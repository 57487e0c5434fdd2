"""A tiny language whose every output can be enumerated."""

import itertools

import numpy as np
import pytest
from keras import ops

VOCAB, LENGTH, BATCH = 5, 4, 3


class Language:
    """Log-probabilities that depend on the sentence, the step and the last two ids."""

    def __init__(self, seed):
        logits = 2 * np.random.default_rng(seed).normal(size=(BATCH, LENGTH, VOCAB, VOCAB, VOCAB))
        self.logits = logits.astype("float32")
        self.logits[..., 0] = -1e9  # no padding: it would take probability away
        exponentials = np.exp(self.logits.astype("float64"))
        self.log_probs = np.log(exponentials / exponentials.sum(-1, keepdims=True) + 1e-300)

    def start(self):
        zeros = np.zeros(BATCH, "int32")
        context = {"sentence": np.arange(BATCH, dtype="int32")}
        return {"context": context, "step": zeros, "previous": zeros}

    def step(self, ids, state):
        index = ops.convert_to_tensor(state["context"]["sentence"])
        for size, part in ((LENGTH, state["step"]), (VOCAB, state["previous"]), (VOCAB, ids)):
            index = index * size + part
        logits = ops.take(self.logits.reshape(-1, VOCAB), index, axis=0)
        return logits, {**state, "step": state["step"] + 1, "previous": ids}

    def log_prob(self, sentence, ids):
        total, last, previous = 0.0, 0, 0
        for step, token in enumerate(ids):
            total += self.log_probs[sentence, step, previous, last, token]
            previous, last = last, token
        return total

    def all_outputs(self, sentence, alpha, limit):
        """Every finished output of at most `limit` ids, (score, ids), best first."""
        outputs = []
        for length in range(1, limit + 1):
            for ids in itertools.product(range(2, VOCAB), repeat=length - 1):
                ids = [*ids, 1]
                score = self.log_prob(sentence, ids) / ((5 + length) / 6) ** alpha
                outputs.append((score, ids))
        return sorted(outputs, reverse=True)


@pytest.fixture(params=[1, 2, 3])
def language(request):
    return Language(request.param)
