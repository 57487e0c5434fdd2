"""Selection of the most likely continuations of the beams of a sentence."""

from typing import NamedTuple

import keras
from keras import ops

from t2t_relpos.decoding.constraints import LOWEST_LOGIT, MASKED
from t2t_relpos.decoding.state_rows import take_beams
from t2t_relpos.decoding.top_k import top_k


class Candidates(NamedTuple):
    """Continuations of the beams of each sentence, each `[B, count]`.

    Attributes:
        sums: float32, log-probabilities of the outputs. They have no meaning if not valid.
        beams: int32, the beams that are continued.
        ids: int32, their next ids.
        is_valid: bool, False for forbidden ids and inactive beams.
    """

    sums: object
    beams: object
    ids: object
    is_valid: object


def best_candidates(
    scores, offsets, is_active, count, *, never_id=None, allowed=None, normalize=False
):
    """Returns the best continuations of each sentence over all its beams and ids.

    Args:
        scores: float32 `[B * k, V]`, the score of every id as the next one of a beam.
        offsets: float32 `[B, k]`, added to all scores of a beam.
        is_active: bool `[B, k]`, False for beams that can't be continued.
        count: number of continuations, an int or a scalar tensor, at most `k * V`. On
            TensorFlow it may be larger. The additional ones are not valid.
        never_id: an id that is never chosen.
        allowed: bool `[B * k, V]` or `[1, V]`, False for ids that must not be chosen. The scores
            must be finite. Default: None, all.
        normalize: whether the scores are logits, which are converted to log-probabilities
            first.

    Returns:
        `Candidates`, valid ones first, then by sum. Equal sums are in the order of beams and ids,
        except on TensorFlow, where their order is not defined.

    Example:
    >>> import numpy as np
    >>> from keras import ops
    >>> from t2t_relpos.decoding.candidates import best_candidates
    >>> scores = np.array([[1.0, 5.0, 3.0], [4.0, 0.0, 1.0]], "float32")
    >>> offsets, is_active = np.array([[0.0, 2.0]], "float32"), np.array([[True, True]])
    >>> found = best_candidates(scores, offsets, is_active, 3)
    >>> [ops.convert_to_numpy(x)[0].tolist() for x in found]
    [[6.0, 5.0, 3.0], [1, 0, 0], [0, 1, 2], [True, True, True]]
    """
    is_active = ops.convert_to_tensor(is_active)
    scores, offsets = ops.convert_to_tensor(scores), ops.convert_to_tensor(offsets)
    size = scores.shape[-1]
    if never_id is not None and not 0 <= never_id < size:
        never_id = None
    arguments = scores, offsets, is_active, count, never_id, allowed
    sums, beams, ids, exists = _select(*arguments, normalize=normalize)
    is_valid = take_beams(is_active, beams)
    if exists is not None:
        is_valid = ops.logical_and(is_valid, exists)
    if never_id is not None:
        is_valid = ops.logical_and(is_valid, ids != never_id)
    if allowed is not None:
        batch, num_beams = ops.shape(offsets)
        allowed = ops.broadcast_to(allowed, ops.shape(scores))
        allowed = ops.reshape(allowed, (batch, num_beams * size))
        is_valid = ops.logical_and(is_valid, take_beams(allowed, beams * size + ids))
    return Candidates(sums, beams, ids, is_valid)


def _select(scores, offsets, is_active, count, never_id, allowed, *, normalize):
    """Returns the sums, beams and ids of `Candidates`, and whether they exist, or None for all."""
    if keras.backend.backend() == "tensorflow":
        from t2t_relpos.decoding import _tensorflow_candidates

        if _tensorflow_candidates.is_faster(scores, count):
            return _tensorflow_candidates.best_candidates(
                scores, offsets, is_active, count, never_id, allowed, normalize=normalize
            )
    size = scores.shape[-1]
    if normalize:
        scores = ops.log_softmax(ops.maximum(scores, LOWEST_LOGIT), axis=-1)
    if never_id is not None:
        scores = ops.where(ops.arange(size, dtype="int32") == never_id, MASKED, scores)
    if allowed is not None:
        scores = ops.where(allowed, scores, MASKED)
    batch, beams = ops.shape(offsets)
    sums = ops.reshape(scores, (batch, beams, size)) + ops.expand_dims(offsets, -1)
    sums = ops.where(ops.expand_dims(is_active, -1), sums, MASKED)
    sums, exists = ops.reshape(sums, (batch, beams * size)), None
    if keras.backend.backend() == "tensorflow":
        # One beam may have fewer than `count` entries. The number is unknown in a graph.
        sums = ops.pad(sums, [[0, 0], [0, count]], constant_values=MASKED)
    best, index = top_k(sums, count)
    if keras.backend.backend() == "tensorflow":
        exists = index < beams * size
        index = ops.minimum(index, beams * size - 1)
    return best, index // size, index % size, exists
