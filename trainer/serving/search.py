"""Beam search of an exported model: for all sizes, or compiled by XLA for a few sizes."""

import functools
import itertools

import tensorflow as tf

from t2t_relpos.decoding import DecodingResult, beam_search, length_penalty

from ..data.tokenizer import EOS_ID, PAD_ID
from .translator import ABSENT

# With 8 sentences, the search without XLA is faster.
COMPILED_BATCH_SIZES = (1, 2, 4)
_COMPILED_LENGTHS = (16, 32, 64)


def n_best(
    transformer, source, length_limit, alpha, *, max_length=None, **settings
) -> DecodingResult:
    """Returns the n best hypotheses of each sentence. Missing ones have the score `ABSENT`.

    Args:
        transformer: as for `TranslationModule`.
        source: int32 ids `[B, S]`, padded with 0.
        length_limit: int32 `[B]`, maximum number of output ids of each sentence.
        alpha: exponent of the length penalty. It may be a tensor, as `beam_size` and `num_results`.
        max_length: int, required by XLA: static maximum number of output ids of any sentence.
        **settings: `beam_size`, `num_results` and `early_stopping` of `beam_search`.
    """
    growing = max_length is None
    if growing:
        max_length = tf.reduce_max(length_limit)
    state, step = transformer.start_search(
        source, max_length, settings["beam_size"], growing=growing
    )
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
    # A missing hypothesis has a very low log-probability. The length penalty may have raised its
    # score above the threshold, so both are compared.
    log_probs = found.scores * length_penalty(found.lengths, alpha)
    is_absent = tf.minimum(found.scores, log_probs) < ABSENT / 2
    return DecodingResult(
        ids=tf.where(is_absent[..., None], PAD_ID, found.ids),
        scores=tf.where(is_absent, ABSENT, found.scores),
        lengths=tf.where(is_absent, 0, found.lengths),
    )


def compiled_lengths(max_input_length: int) -> list[int]:
    """Returns the source lengths for which XLA compiles searches, in ids with EOS."""
    return sorted({min(length, max_input_length) for length in _COMPILED_LENGTHS})


def compiled_search(transformer, settings, source, length_limit, finish, fallback):
    """Pads a batch to the next compiled sizes, and searches with the settings of an export.

    Returns the result of `finish`, a function of the `DecodingResult`, which must not depend on the
    sizes. Of larger batches and longer sentences, returns that of `fallback()`.
    """
    batch, length = tf.unstack(tf.shape(source))

    @tf.function(jit_compile=True, autograph=False)
    def search(source, length_limit):
        return n_best(
            transformer,
            source,
            length_limit,
            settings.alpha,
            max_length=source.shape[1] + settings.extra_length,
            beam_size=settings.beam_size,
            num_results=1,
            early_stopping=settings.early_stopping,
        )

    def pad_and_search(rows, columns):
        padded = tf.pad(source, [[0, rows - batch], [0, columns - length]])
        limits = tf.pad(length_limit, [[0, rows - batch]])
        found = search(tf.ensure_shape(padded, [rows, columns]), tf.ensure_shape(limits, [rows]))
        return finish(type(found)(*(part[:batch] for part in found)))

    lengths = compiled_lengths(settings.max_input_length)
    sizes = itertools.product(COMPILED_BATCH_SIZES, lengths)
    branches = [functools.partial(pad_and_search, *size) for size in sizes]
    row, column = _count_below(COMPILED_BATCH_SIZES, batch), _count_below(lengths, length)
    is_compiled = (row < len(COMPILED_BATCH_SIZES)) & (column < len(lengths))
    index = tf.where(is_compiled, row * len(lengths) + column, -1)
    return tf.switch_case(index, dict(enumerate(branches)), default=fallback)


def _count_below(sizes, size):
    return tf.reduce_sum(tf.cast(tf.constant(sizes) < size, tf.int32))
