import numpy as np
import pytest
from keras import ops

from t2t_relpos.decoding import beam_search, score_tokens


def logits_of(language, ids):
    """Returns logits for each position of `ids` `[3, L]`; 99 after the end of a sentence."""
    logits = np.full((*ids.shape, 5), 99.0, "float32")
    for sentence, row in enumerate(ids.tolist()):
        for t in range(np.count_nonzero(row)):
            previous, last = [0, 0, *row[:t]][-2:]
            logits[sentence, t] = language.logits[sentence, t, previous, last]
    return logits


@pytest.mark.parametrize(
    "beam_size, alpha, rules",
    [
        (1, 0.6, {}),
        (4, 0.0, {}),
        (4, 2.0, {"min_length": 2, "no_repeat_ngram_size": 1}),
    ],
    ids=str,
)
def test_score_tokens_equals_beam_search_scores(any_language, beam_size, alpha, rules):
    settings = {"beam_size": beam_size, "num_results": beam_size, "alpha": alpha, **rules}
    limits = np.array([4, 2, 3], "int32")  # some outputs do not end
    step, state = any_language.step, any_language.start()
    found = beam_search(step, state, 3, 4, length_limit=limits, **settings)
    for n in range(beam_size):
        ids, expected, lengths = (ops.convert_to_numpy(x)[:, n] for x in found)
        real = expected > -1e6
        scored = score_tokens(logits_of(any_language, ids), ids, alpha=alpha)
        np.testing.assert_allclose(np.array(scored.scores)[real], expected[real], atol=1e-5)
        np.testing.assert_array_equal(np.array(scored.lengths)[real], lengths[real])


def test_score_tokens_supports_another_pad_id():
    logits = np.log([[[0.5, 0.2, 0.3], [0.1, 0.3, 0.6]]]).astype("float32")
    scored = score_tokens(logits, [[0, 2]], pad_id=2, alpha=1.0)
    np.testing.assert_allclose(scored.token_scores, [[np.log(0.5), 0.0]], rtol=1e-6)
    # The penalty of one id is 1.
    np.testing.assert_allclose(scored.scores, [np.log(0.5)], rtol=1e-6)
    np.testing.assert_array_equal(scored.lengths, [1])


def test_score_tokens_computes_bfloat16_logits_in_float32():
    logits = ops.cast(np.linspace(-3, 3, 5)[None, None], "bfloat16")
    scores = score_tokens(logits, [[2]]).scores
    exact = np.array(ops.cast(logits, "float32"))[0, 0]
    np.testing.assert_allclose(scores, [exact[2] - np.log(np.exp(exact).sum())], rtol=1e-6)
