"""Which continuations of a sentence's beams are the likeliest."""

import keras
from keras import ops

from t2t_relpos.decoding.top_k import top_k


def best_candidates(scores, offsets, count, never_id=None, never=-1e7, normalize=False):
    """The best continuations of each sentence, over all its beams and ids.

    Args:
        scores: float32 `[B * k, V]`, of every id as the next one of a beam.
        offsets: float32 `[B, k]`, added to all scores of a beam.
        count: how many, an int or a scalar tensor; at most `k * V`, but on
            TensorFlow, where sums far below `never` fill up.
        never_id: an id whose score is `never` in place of what `scores` says.
        never: below every score that counts.
        normalize: whether the scores are logits: their log-probabilities are
            taken instead, `never_id` with a share in them.

    Returns:
        (sums float32 `[B, count]`, best first; the beam, int32 `[B, count]`, and
        the id, int32 `[B, count]`, that each belongs to.) Among equal sums the
        first beam and id come first, but on TensorFlow, where only which sums
        are found is certain.

    Example:
    >>> import numpy as np
    >>> from keras import ops
    >>> from t2t_relpos.decoding.candidates import best_candidates
    >>> scores = np.array([[1.0, 5.0, 3.0], [4.0, 0.0, 1.0]], "float32")
    >>> found = best_candidates(scores, np.array([[0.0, 2.0]], "float32"), 3)
    >>> [ops.convert_to_numpy(x)[0].tolist() for x in found]
    [[6.0, 5.0, 3.0], [1, 0, 0], [0, 1, 2]]
    """
    if keras.backend.backend() == "tensorflow":
        from t2t_relpos.decoding import _tensorflow_candidates

        if _tensorflow_candidates.can_take(scores):
            return _tensorflow_candidates.best_candidates(
                scores, offsets, count, never_id, never, normalize
            )
    size = scores.shape[-1]
    if normalize:
        scores = ops.log_softmax(scores, axis=-1)
    if never_id is not None:
        scores = ops.where(ops.arange(size) == never_id, never, scores)
    batch, beams = ops.shape(offsets)
    sums = ops.reshape(scores, (batch, beams, size)) + ops.expand_dims(offsets, -1)
    sums = ops.reshape(sums, (batch, beams * size))
    if keras.backend.backend() == "tensorflow":
        # A single beam may have fewer. A graph does not know the number, so there are always
        # enough.
        sums = ops.pad(sums, [[0, 0], [0, count]], constant_values=2 * never)
    best, index = top_k(sums, count)
    index = ops.minimum(index, beams * size - 1)
    return best, index // size, index % size
