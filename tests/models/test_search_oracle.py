"""Search with caches finds the same as enumerating all outputs with the plain call."""

import itertools

import numpy as np
import pytest
from keras import ops

from t2t_relpos.decoding import beam_search
from t2t_relpos.models import Transformer, TransformerConfig
from t2t_relpos.models.config import POSITIONS

VOCAB, LENGTH = 5, 4
SOURCE = np.array([[4, 2, 3, 1], [3, 1, 0, 0], [2, 2, 1, 0]], "int32")
LIMITS = np.array([4, 3, 4], "int32")


def make(position):
    model = Transformer(
        TransformerConfig(
            vocab_size=VOCAB,
            num_encoder_layers=1,
            num_decoder_layers=2,
            hidden_dim=6,
            intermediate_dim=7,
            num_heads=2,
            max_relative_position=2,
            max_length=LENGTH,
            dropout=0.0,
            position=position,
        )
    )
    rng = np.random.default_rng(3)
    for weight in model.weights:
        if "seed" not in weight.path:
            weight.assign(ops.convert_to_numpy(weight) + 0.7 * rng.normal(size=weight.shape))
    return model


def all_outputs(limit):
    """Every finished output of at most `limit` ids, padded: `[outputs, LENGTH]`."""
    words = (itertools.product(range(2, VOCAB), repeat=length) for length in range(limit))
    return np.array(
        [[*ids, 1] + [0] * (LENGTH - 1 - len(ids)) for ids in itertools.chain(*words)], "int32"
    )


def plain_scores(model, source, outputs, alpha):
    """Log-probabilities from one call without caches, over the length penalty."""
    inputs = {"inputs": np.tile(source, (len(outputs), 1)), "targets": outputs}
    logits = ops.convert_to_numpy(model(inputs)).astype("float64")
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    given = np.take_along_axis(log_probs, outputs[..., None], -1)[..., 0]
    real = outputs != 0
    return (given * real).sum(-1) / ((5 + real.sum(-1)) / 6) ** alpha


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("position", POSITIONS)
def test_a_wide_beam_finds_the_best_of_all_outputs(position, alpha):
    model = make(position)
    state = model.encode(SOURCE, LENGTH)
    # 27 outputs of three words have four ids each to continue with: 108 candidates. The
    # search looks at 2 · 64.
    found = beam_search(
        model.step, state, 3, LENGTH, beam_size=64, alpha=alpha, length_limit=LIMITS, num_results=7
    )
    ids, scores = ops.convert_to_numpy(found.ids), ops.convert_to_numpy(found.scores)
    for sentence, limit in enumerate(LIMITS):
        outputs = all_outputs(limit)
        expected = plain_scores(model, SOURCE[sentence], outputs, alpha)
        np.testing.assert_allclose(scores[sentence], np.sort(expected)[::-1][:7], atol=2e-5)
        # By their scores: in float32 two outputs may be as good as equal.
        place = [outputs.tolist().index(output) for output in ids[sentence].tolist()]
        assert len(set(place)) == 7
        np.testing.assert_allclose(expected[place], scores[sentence], atol=2e-5)


def test_a_narrow_beam_gives_the_scores_of_the_plain_call():
    model = make("relative")
    found = beam_search(model.step, model.encode(SOURCE, LENGTH), 3, LENGTH, beam_size=2)
    for sentence in range(3):
        output = ops.convert_to_numpy(found.ids)[sentence]
        expected = plain_scores(model, SOURCE[sentence], output, 0.6)
        np.testing.assert_allclose(found.scores[sentence], expected, atol=2e-5)
