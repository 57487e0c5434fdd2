"""The search of an exported model: the n best translations, each place filled or plainly empty."""

import tensorflow as tf

from t2t_relpos.decoding import DecodingResult, beam_search, length_penalty
from trainer.data.token_ids import EOS_ID, PAD_ID

# The score of a place without a translation: below every score that occurs, and finite, since JSON
# has no infinity.
ABSENT = -1e7


def n_best(transformer, source, length_limit, alpha, **settings) -> DecodingResult:
    """Searches the most likely outputs.

    Args:
        transformer: as for `TranslationModule`.
        source: int32 ids `[B, S]`, padded with 0.
        length_limit: int32 `[B]`, most ids of each sentence's outputs.
        alpha: as `beam_size`, `num_results`, `early_stopping`, for
            `t2t_relpos.decoding.beam_search`; all but the last may be scalar tensors.
        **settings: those others.

    Returns:
        A `DecodingResult` of the n best. If there are fewer, the places left hold no ids, and
        `ABSENT` as score.
    """
    max_length = tf.reduce_max(length_limit)
    state, step = transformer.start(source, max_length, settings["beam_size"])
    found = beam_search(
        step,
        state,
        batch_size=tf.shape(source)[0],
        max_length=max_length,
        alpha=alpha,
        eos_id=EOS_ID,
        pad_id=PAD_ID,
        length_limit=length_limit,
        **settings,
    )
    return _with_empty_places(found, alpha)


def _with_empty_places(found, alpha):
    """Places that the search could not fill hold its own mark, perhaps over the length penalty of
    a beam that never lived.
    """
    log_probs = found.scores * length_penalty(found.lengths, alpha)
    is_absent = tf.minimum(found.scores, log_probs) < ABSENT / 2
    return DecodingResult(
        ids=tf.where(is_absent[..., None], PAD_ID, found.ids),
        scores=tf.where(is_absent, ABSENT, found.scores),
        lengths=tf.where(is_absent, 0, found.lengths),
    )
