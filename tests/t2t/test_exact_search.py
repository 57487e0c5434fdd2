"""Tests the differences that `t2t_exact` makes in beam search.

test_parity.py compares the search with tensor2tensor.
"""

import numpy as np
from keras import ops

from t2t_relpos.decoding import beam_search, length_penalty

# Probabilities of the next id by last id. Id 0 is padding, id 1 ends the sentence.
PADDING_LIKELY = [[0.9, 0.06, 0.04]] * 3
# EOS is never among the 2·beam best candidates.
NEVER_ENDS = [[0.05, 1e-9, 0.4, 0.3, 0.1, 0.1, 0.05]] * 7


def search(probabilities, max_length, **arguments):
    log_probs = np.log(np.array(probabilities, "float32"))

    def step(ids, state):
        return ops.take(log_probs, ids, axis=0), state

    result = beam_search(step, {"none": np.zeros((1, 1))}, 1, max_length, beam_size=2, **arguments)
    return [ops.convert_to_numpy(x)[0, 0] for x in (result.ids, result.scores)]


def test_t2t_exact_may_select_padding():
    # With this length penalty, three ids score better than one.
    ids, score = search(PADDING_LIKELY, 3, alpha=4.0, t2t_exact=True)
    assert ids.tolist() == [0, 0, 1]
    np.testing.assert_allclose(score, np.log(0.9 * 0.9 * 0.06) / (8 / 6) ** 4, rtol=1e-5)
    ids, _ = search(PADDING_LIKELY, 3, alpha=4.0)
    assert ids.tolist() == [1, 0, 0]


def test_t2t_exact_scores_unfinished_outputs_without_length_penalty():
    ids, score = search(NEVER_ENDS, 3, t2t_exact=True)
    assert ids.tolist() == [2, 2, 2]
    np.testing.assert_allclose(score, 3 * np.log(0.4), rtol=1e-5)
    ids, score = search(NEVER_ENDS, 3)
    assert ids.tolist() == [2, 2, 2]
    np.testing.assert_allclose(score, 3 * np.log(0.4) / length_penalty(3, 0.6), rtol=1e-5)
