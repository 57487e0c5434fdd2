"""Selection of the most likely continuations of the beams of a sentence."""

import keras
from keras import ops

from t2t_relpos.decoding.top_k import top_k


def best_candidates(scores, offsets, count, never_id=None, never=-1e7, *, normalize=False):
    """Returns the best continuations of each sentence over all its beams and ids.

    Args:
        scores: float32 `[B * k, V]`, the score of every id as the next one of a beam.
        offsets: float32 `[B, k]`, added to all scores of a beam.
        count: number of continuations, an int or a scalar tensor, at most `k * V`. On
            TensorFlow it may be larger. The sums of missing entries are then far below `never`.
        never_id: an id whose score is replaced by `never`.
        never: a score below all others.
        normalize: whether the scores are logits, which are converted to log-probabilities
            first.

    Returns:
        (sums float32 `[B, count]`, best first; their beams, int32 `[B, count]`; their ids,
        int32 `[B, count]`). Equal sums are in the order of beams and ids, except on
        TensorFlow, where their order is not defined.

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

        if _tensorflow_candidates.is_faster(scores):
            return _tensorflow_candidates.best_candidates(
                scores, offsets, count, never_id, never, normalize=normalize
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
        # One beam may have fewer than `count` entries. The number is unknown in a graph.
        sums = ops.pad(sums, [[0, 0], [0, count]], constant_values=2 * never)
    best, index = top_k(sums, count)
    index = ops.minimum(index, beams * size - 1)
    return best, index // size, index % size
