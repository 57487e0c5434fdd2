"""A sentence and its translation as the ids that a model sees, and their names."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from t2t_relpos.decoding import beam_search
from trainer.serving.module import EOS_ID, TranslationSettings

# More would be too small to be seen, on a page too large to be opened.
LONGEST = 128


class SentencePair(NamedTuple):
    """Two sentences.

    Attributes:
        source: text of the source.
        target: text of its translation.
        source_ids: EOS included.
        target_ids: EOS included, but for a translation by the model that did not end within its limit.
        is_given: whether the translation was given; the model's own otherwise.
    """

    source: str
    target: str
    source_ids: list[int]
    target_ids: list[int]
    is_given: bool


def sentence_pair(transformer, tokenizer, source: str, target: str | None = None) -> SentencePair:
    """Makes ids of a sentence and its translation.

    Args:
        transformer: a `t2t_relpos.models.Transformer`.
        tokenizer: its own, as `ModelDirectory.load_tokenizer` gives it.
        source: a sentence.
        target: its translation; None for that which the model finds with the default `TranslationSettings`.

    Raises:
        ValueError: for a sentence without words, or one that is too long for the model or for a page.
    """
    limit = LONGEST
    if transformer.config.position == "learned":
        limit = min(limit, transformer.config.max_length)
    source_ids = _ids(tokenizer, source, "source", limit)
    if target is not None:
        return SentencePair(
            source, target, source_ids, _ids(tokenizer, target, "target", limit), True
        )
    target_ids = translation_ids(transformer, source_ids, limit)
    text = (
        tokenizer.detokenize(tf.constant([target_ids], tf.int32))
        .numpy()[0]
        .decode(errors="replace")
    )
    return SentencePair(source, text, source_ids, target_ids, False)


def translation_ids(transformer, source_ids: list[int], limit: int) -> list[int]:
    """Ids of the best translation of a sentence, EOS included where it ends within `limit` ids and the default settings'."""
    settings = TranslationSettings()
    max_length = min(len(source_ids) + settings.extra_length, limit)

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)], autograph=False)
    def search(source):
        state = transformer.encode(source, max_length)
        sizes = {
            "batch_size": tf.shape(source)[0],
            "max_length": max_length,
            "beam_size": settings.beam_size,
        }
        return beam_search(transformer.step, state, **sizes, alpha=settings.alpha, eos_id=EOS_ID)

    result = search(tf.constant([source_ids], tf.int32))
    return np.asarray(result.ids)[0, 0, : int(result.lengths[0, 0])].tolist()


def _ids(tokenizer, text, name, limit):
    try:
        ids = tokenizer.tokenize(tf.constant([text.encode()]))[0].numpy().tolist()
    except UnicodeEncodeError as error:
        raise ValueError(f"Expected --{name} in UTF-8. Received: {text!r}.") from error
    if len(ids) < 2:
        hint = ", or leave it out for the model's own translation" if name == "target" else ""
        raise ValueError(
            f"Expected a sentence with --{name}. Received: {text!r}, which has no words. Give one{hint}."
        )
    if len(ids) > limit:
        raise ValueError(
            f"Expected a sentence of at most {limit} ids with --{name}. Received: one of {len(ids)}. Look at a part of it."
        )
    return ids
