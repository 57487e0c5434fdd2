"""A Keras Transformer for `TranslationModule`."""


class PlainTransformer:
    """Decodes with a Keras model that is being trained.

    Unlike `FastTransformer`, it reads the current weights. It is slower and can't be exported.

    Args:
        transformer: a `t2t_relpos.models.Transformer`.
    """

    def __init__(self, transformer):
        self.config = transformer.config
        self._transformer = transformer

    def start(self, source, max_length, beam_size, *, growing=True):
        """Returns (state, step function) of a search, as `FoldedTransformer.start`."""
        return self._transformer.encode(source, max_length), self._transformer.step
