"""What `t2t_exact` changes in the beam search; that it equals tensor2tensor's is for
test_parity.py.
"""

import numpy as np
import pytest
from keras import ops

from t2t_relpos.decoding import beam_search, length_penalty

# Next id by last id, as probabilities: 0 padding, 1 end of sentence.
PADDING_LIKELY = [[0.9, 0.06, 0.04]] * 3
# The end is never among the 2·beam best candidates.
NEVER_ENDS = [[0.05, 1e-9, 0.4, 0.3, 0.1, 0.1, 0.05]] * 7


def search(probabilities, max_length, **arguments):
    log_probs = np.log(np.array(probabilities, "float32"))

    def step(ids, state):
        return ops.take(log_probs, ids, axis=0), state

    result = beam_search(step, {"none": np.zeros((1, 1))}, 1, max_length, beam_size=2, **arguments)
    return [ops.convert_to_numpy(x)[0, 0] for x in (result.ids, result.scores)]


def test_padding_may_be_chosen():
    # With a steep length penalty, three ids beat one.
    ids, score = search(PADDING_LIKELY, 3, alpha=4.0, t2t_exact=True)
    assert ids.tolist() == [0, 0, 1]
    np.testing.assert_allclose(score, np.log(0.9 * 0.9 * 0.06) / (8 / 6) ** 4, rtol=1e-5)
    ids, _ = search(PADDING_LIKELY, 3, alpha=4.0)
    assert ids.tolist() == [1, 0, 0]


def test_what_did_not_finish_has_its_log_probability_as_score():
    ids, score = search(NEVER_ENDS, 3, t2t_exact=True)
    assert ids.tolist() == [2, 2, 2]
    np.testing.assert_allclose(score, 3 * np.log(0.4), rtol=1e-5)
    ids, score = search(NEVER_ENDS, 3)
    assert ids.tolist() == [2, 2, 2]
    np.testing.assert_allclose(score, 3 * np.log(0.4) / length_penalty(3, 0.6), rtol=1e-5)


def test_limits_of_sentences_are_refused():
    message = "Expected no `length_limit` with `t2t_exact`.*Received: both"
    with pytest.raises(ValueError, match=message):
        search(NEVER_ENDS, 3, t2t_exact=True, length_limit=np.array([2]))
