"""The beam search of an exported model."""

import tensorflow as tf

from t2t_relpos.decoding import DecodingResult, beam_search, length_penalty
from trainer.data.token_ids import EOS_ID, PAD_ID
from trainer.serving.translator import ABSENT


def n_best(
    transformer, source, length_limit, alpha, *, max_length=None, **settings
) -> DecodingResult:
    """Returns the n most likely outputs.

    Args:
        transformer: as for `TranslationModule`.
        source: int32 ids `[B, S]`, padded with 0.
        length_limit: int32 `[B]`, largest number of ids of each sentence's outputs.
        alpha: exponent of the length penalty.
        max_length: for XLA only: largest number of ids of any output, an int.
        **settings: `beam_size`, `num_results` and `early_stopping` of `beam_search`. All but the
            last, and `alpha`, may be scalar tensors.

    Returns:
        A `DecodingResult`. If there are fewer than n outputs, the empty places have no ids and the
        score `ABSENT`.
    """
    growing = max_length is None
    if growing:
        max_length = tf.reduce_max(length_limit)
    state, step = transformer.start(source, max_length, settings["beam_size"], growing=growing)
    found = beam_search(
        step,
        state,
        batch_size=tf.shape(source)[0] if growing else source.shape[0],
        max_length=max_length,
        alpha=alpha,
        eos_id=EOS_ID,
        pad_id=PAD_ID,
        length_limit=length_limit,
        **settings,
    )
    # Places that the search could not fill have a very low log-probability, which may be divided by
    # a length penalty.
    log_probs = found.scores * length_penalty(found.lengths, alpha)
    is_absent = tf.minimum(found.scores, log_probs) < ABSENT / 2
    return DecodingResult(
        ids=tf.where(is_absent[..., None], PAD_ID, found.ids),
        scores=tf.where(is_absent, ABSENT, found.scores),
        lengths=tf.where(is_absent, 0, found.lengths),
    )
