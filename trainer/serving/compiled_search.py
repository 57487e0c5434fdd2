"""Searches of an exported model that XLA compiles, for a few sizes of batches and sentences."""

import functools

import tensorflow as tf

from trainer.serving.n_best import n_best

# With 8 sentences, the search without XLA is faster.
BATCH_SIZES = (1, 2, 4)
LENGTHS = (16, 32, 64)


def lengths(longest: int) -> list[int]:
    """Returns the lengths of sources for which searches are compiled.

    Args:
        longest: largest number of ids of a source sentence, with EOS.
    """
    return sorted({min(length, longest) for length in LENGTHS})


class CompiledSearches:
    """The search of an export's default settings, compiled for each batch size and length.

    Args:
        transformer: as for `TranslationModule`.
        settings: a `TranslationSettings`.
    """

    def __init__(self, transformer, settings):
        self.transformer = transformer
        self.settings = settings
        self.lengths = lengths(settings.max_input_length)

    def run(self, source, length_limit, finish, otherwise):
        """Pads a batch to the next sizes and searches.

        Args:
            source: int32 ids `[B, S]`, padded with 0.
            length_limit: int32 `[B]`, largest number of ids of each sentence's outputs.
            finish: function of the `DecodingResult` whose results do not depend on the sizes.
            otherwise: function without arguments with the same results, for larger batches and
                longer sentences.

        Returns:
            The result of `finish` or `otherwise`.
        """
        batch, length = _count_below(BATCH_SIZES, source, 0), _count_below(self.lengths, source, 1)
        is_compiled = (batch < len(BATCH_SIZES)) & (length < len(self.lengths))
        index = tf.where(is_compiled, batch * len(self.lengths) + length, -1)
        sizes = [(rows, columns) for rows in BATCH_SIZES for columns in self.lengths]
        branches = {
            number: functools.partial(self._pad_and_search, size, source, length_limit, finish)
            for number, size in enumerate(sizes)
        }
        return tf.switch_case(index, branches, default=otherwise)

    def _pad_and_search(self, size, source, length_limit, finish):
        batch, length = tf.unstack(tf.shape(source))
        source = tf.pad(source, [[0, size[0] - batch], [0, size[1] - length]])
        length_limit = tf.pad(length_limit, [[0, size[0] - batch]])
        search = tf.function(self._search, jit_compile=True, autograph=False)
        found = search(tf.ensure_shape(source, size), tf.ensure_shape(length_limit, size[:1]))
        return finish(type(found)(*(part[:batch] for part in found)))

    def _search(self, source, length_limit):
        settings = self.settings
        return n_best(
            self.transformer,
            source,
            length_limit,
            settings.alpha,
            max_length=source.shape[1] + settings.extra_length,
            beam_size=settings.beam_size,
            num_results=1,
            early_stopping=settings.early_stopping,
        )


def _count_below(sizes, source, axis):
    """Returns the number of `sizes` that are below the size of `source`."""
    return tf.reduce_sum(tf.cast(tf.constant(sizes) < tf.shape(source)[axis], tf.int32))
