"""A Keras Transformer as a `TranslationModule` takes it."""


class PlainTransformer:
    """Decodes with a Keras model itself, whose weights may change afterwards: for a model that is
    being trained.

    Slower than `FastTransformer`, which copies the weights; and it can't be exported.

    Args:
        transformer: a `t2t_relpos.models.Transformer`, or what has its `config`, `encode` and
            `step`.
    """

    def __init__(self, transformer):
        self.config = transformer.config
        self._transformer = transformer

    def start(self, source, max_length, beam_size):
        """(state, step function) of a search, whose beams the search itself moves: see
        `FastTransformer.start`.
        """
        return self._transformer.encode(source, max_length), self._transformer.step
