"""BLEU and chrF of the model in training on the dev set."""

from collections.abc import Callable
from typing import NamedTuple

import keras

from trainer import metrics
from trainer.config_checks import DEFAULT_TOKENIZER
from trainer.data.corpus import Corpus
from trainer.serving.translation_module import TranslationModule, TranslationSettings
from trainer.serving.translator import Translator, translate_texts

_SAMPLES = 3
_BATCH_SIZE = 64


class Sample(NamedTuple):
    """A sentence pair of the dev set and the model's translation."""

    source: str
    reference: str
    translation: str


class DevScores(NamedTuple):
    """Scores of the dev set, 0 to 100, and sample translations.

    Both scores are sacreBLEU's, of cased and detokenized text: BLEU and chrF2.
    """

    bleu: float
    chrf: float
    samples: list[Sample]


class _Interrupted(Exception):
    pass


class DevTranslator:
    """A function that translates the dev set with greedy search.

    The graph is traced once. Every call uses the current weights of the model.

    Args:
        transformer: the `t2t_relpos.models.Transformer` in training.
        tokenizer: the model's tokenizer.
        corpus: the dev set, which is held in memory.
        longest: number of ids of its longest source sentence, with EOS.
        bleu_tokenize: tokenizer of sacreBLEU.
    """

    def __init__(
        self,
        transformer: keras.Model,
        tokenizer,
        corpus: Corpus,
        longest: int,
        bleu_tokenize: str = DEFAULT_TOKENIZER,
    ):
        if transformer.config.position == "learned":
            longest = min(longest, transformer.config.max_length)
        settings = TranslationSettings(beam_size=1, max_input_length=max(longest, 2))
        module = TranslationModule(transformer, tokenizer, settings)
        self._translate = Translator(module.serve, module)
        self._pairs = list(corpus)
        self._bleu_tokenize = bleu_tokenize

    def __call__(self, interrupted: Callable[[], bool] = lambda: False) -> DevScores | None:
        """Returns scores and samples, or None if `interrupted()` returns True before a batch."""

        def translate(sentences):
            if interrupted():
                raise _Interrupted
            return self._translate(sentences)

        sources, references = zip(*self._pairs)
        try:
            hypotheses, _ = translate_texts(translate, sources, _BATCH_SIZE)
        except _Interrupted:
            return None
        bleu = metrics.sacrebleu(hypotheses, references, self._bleu_tokenize).value
        chrf = metrics.score("chrf", hypotheses, references).value
        rows = range(0, len(hypotheses), max(1, len(hypotheses) // _SAMPLES))[:_SAMPLES]
        return DevScores(bleu, chrf, [Sample(*self._pairs[i], hypotheses[i]) for i in rows])
