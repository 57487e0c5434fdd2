import numpy as np
from keras import ops

from t2t_relpos.decoding import greedy_search


def greedy(language, sentence, limit):
    ids, last, previous = [], 0, 0
    while len(ids) < limit and last != 1:
        step = language.log_probs[sentence, len(ids), previous, last]
        previous, last = last, int(step.argmax())
        ids.append(last)
    return ids


def test_takes_the_best_id_at_every_step(language):
    limits = [4, 2, 3]
    result = greedy_search(
        language.step, language.start(), 3, 4, length_limit=np.array(limits, "int32")
    )
    for sentence, limit in enumerate(limits):
        expected = greedy(language, sentence, limit)
        ids = ops.convert_to_numpy(result.ids)[sentence, 0].tolist()
        assert ids == expected + [0] * (4 - len(expected))
        assert result.lengths[sentence, 0] == len(expected)
        score = language.log_prob(sentence, expected)
        np.testing.assert_allclose(result.scores[sentence, 0], score, atol=1e-5)
