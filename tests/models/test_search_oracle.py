"""Compares cached beam search with exhaustive scoring without caches."""

import itertools

import numpy as np
import pytest
from keras import ops
from small_transformers import random_transformer

from t2t_relpos.decoding import beam_search
from t2t_relpos.models.config import POSITIONS

VOCAB, LENGTH = 5, 4
SOURCE = np.array([[4, 2, 3, 1], [3, 1, 0, 0], [2, 2, 1, 0]], "int32")
LIMITS = np.array([4, 3, 4], "int32")


def make_transformer(position):
    return random_transformer(
        0.7, vocab_size=VOCAB, num_decoder_layers=2, max_length=LENGTH, position=position
    )


def all_outputs(limit):
    """Returns all finished outputs of at most `limit` ids, padded: `[outputs, LENGTH]`."""
    words = (itertools.product(range(2, VOCAB), repeat=length) for length in range(limit))
    return np.array(
        [[*ids, 1] + [0] * (LENGTH - 1 - len(ids)) for ids in itertools.chain(*words)], "int32"
    )


def plain_scores(model, source, outputs, alpha):
    """Returns length-penalized log-probabilities from one call without caches."""
    inputs = {"inputs": np.tile(source, (len(outputs), 1)), "targets": outputs}
    logits = ops.convert_to_numpy(model(inputs)).astype("float64")
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    token_scores = np.take_along_axis(log_probs, outputs[..., None], -1)[..., 0]
    real = outputs != 0
    return (token_scores * real).sum(-1) / ((5 + real.sum(-1)) / 6) ** alpha


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("position", POSITIONS)
def test_beam_search_with_wide_beam_equals_exhaustive_search(position, alpha):
    model = make_transformer(position)
    state = model.encode(SOURCE, LENGTH)
    # Each of the 27 three-word outputs has four continuations: 108 candidates. The search keeps
    # 2 · 64 candidates, so it prunes none.
    found = beam_search(
        model.step, state, 3, LENGTH, beam_size=64, alpha=alpha, length_limit=LIMITS, num_results=7
    )
    ids, scores = ops.convert_to_numpy(found.ids), ops.convert_to_numpy(found.scores)
    for sentence, limit in enumerate(LIMITS):
        outputs = all_outputs(limit)
        expected = plain_scores(model, SOURCE[sentence], outputs, alpha)
        np.testing.assert_allclose(scores[sentence], np.sort(expected)[::-1][:7], atol=2e-5)
        # Compare by score: in float32 the order of nearly equal outputs is arbitrary.
        found_indices = [outputs.tolist().index(output) for output in ids[sentence].tolist()]
        assert len(set(found_indices)) == 7
        np.testing.assert_allclose(expected[found_indices], scores[sentence], atol=2e-5)


def test_beam_search_with_narrow_beam_scores_equal_the_uncached_call():
    model = make_transformer("relative")
    found = beam_search(model.step, model.encode(SOURCE, LENGTH), 3, LENGTH, beam_size=2)
    for sentence in range(3):
        output = ops.convert_to_numpy(found.ids)[sentence]
        expected = plain_scores(model, SOURCE[sentence], output, 0.6)
        np.testing.assert_allclose(found.scores[sentence], expected, atol=2e-5)
