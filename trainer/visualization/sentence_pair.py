"""A sentence and its translation as token ids."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from trainer.serving.translation_settings import TranslationSettings

# Limits the size of the page, which is 90 MB for a base model with 128 tokens per sentence.
MAX_LENGTH = 128


class SentencePair(NamedTuple):
    """A source sentence and its translation, as text and as token ids with EOS.

    The ids of a generated translation have no EOS if it was truncated at the length limit.
    `is_given` is False if the model generated the translation.
    """

    source: str
    target: str
    source_ids: list[int]
    target_ids: list[int]
    is_given: bool


def make_sentence_pair(
    transformer, tokenizer, source: str, target: str | None = None
) -> SentencePair:
    """Returns a tokenized sentence pair. If `target` is None, the model generates it.

    Args:
        transformer: a `t2t_relpos.models.Transformer`.
        tokenizer: the model's tokenizer.
        source: source sentence.
        target: its translation, or None to generate it with the default beam search.

    Raises:
        ValueError: if a sentence is empty, or longer than the model or the page supports.
    """
    limit = MAX_LENGTH
    if transformer.config.position == "learned":
        limit = min(limit, transformer.config.max_length)
    source_ids = _tokenize(tokenizer, source, "source", limit)
    if target is not None:
        target_ids = _tokenize(tokenizer, target, "target", limit)
        return SentencePair(source, target, source_ids, target_ids, is_given=True)
    target_ids = translate_ids(transformer, source_ids, limit)
    text = tokenizer.detokenize(tf.constant([target_ids], tf.int32)).numpy()[0]
    return SentencePair(source, text.decode(errors="replace"), source_ids, target_ids, False)


def translate_ids(transformer, source_ids: list[int], limit: int) -> list[int]:
    """Returns the best hypothesis of at most `limit` ids, with EOS if it ends within the limit."""
    max_length = min(len(source_ids) + TranslationSettings.extra_length, limit)
    (ids,) = transformer.generate([source_ids], max_length=max_length)
    return np.trim_zeros(ids, "b").tolist()


def _tokenize(tokenizer, text, name, limit):
    try:
        ids = tokenizer.tokenize(tf.constant([text.strip().encode()]))[0].numpy().tolist()
    except UnicodeEncodeError as error:
        raise ValueError(f"--{name} must be valid UTF-8, got {text!r}.") from error
    if len(ids) < 2:
        raise ValueError(f"--{name} must be a sentence, got {text!r}.")
    if len(ids) > limit:
        raise ValueError(f"--{name} must have at most {limit} token ids, got {len(ids)}.")
    return ids
