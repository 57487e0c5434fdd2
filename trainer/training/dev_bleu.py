"""Translating the dev set with the model as it is trained."""

from collections.abc import Callable
from typing import NamedTuple

import keras
from sacrebleu.metrics import BLEU

from trainer.data.corpus import Corpus
from trainer.serving.plain_transformer import PlainTransformer
from trainer.serving.translation_module import TranslationModule, TranslationSettings
from trainer.serving.translator import Translator, one_line, translate_lines

_SAMPLES = 3
_SENTENCES_AT_ONCE = 64


class Sample(NamedTuple):
    """A sentence of the dev set, its translation there and the model's."""

    source: str
    reference: str
    translation: str


class DevBleu(NamedTuple):
    """sacreBLEU of the dev set, cased and on detokenised text, from 0 to 100; and some of its
    sentences.
    """

    bleu: float
    samples: list[Sample]


class _GivenUp(Exception):
    pass


class DevTranslator:
    """Translates the dev set, with a beam of 1 for speed.

    The graph is made once and reads the variables that training writes.

    Args:
        transformer: the `t2t_relpos.models.Transformer` that is trained.
        tokenizer: of the model.
        corpus: the dev set; held in memory.
        longest: ids of its longest source sentence, EOS included.
    """

    def __init__(self, transformer: keras.Model, tokenizer, corpus: Corpus, longest: int):
        if transformer.config.position == "learned":
            longest = min(longest, transformer.config.max_length)
        settings = TranslationSettings(beam_size=1, max_input_length=max(longest, 2))
        module = TranslationModule(PlainTransformer(transformer), tokenizer, settings)
        self._translate = Translator(module.serve, module)
        self._pairs = list(corpus)

    def __call__(self, interrupted: Callable[[], bool] = lambda: False) -> DevBleu | None:
        """Translates it.

        Args:
            interrupted: asked before every batch whether to give up.

        Returns:
            None where it gave up.
        """
        hypotheses = self._hypotheses(interrupted)
        if hypotheses is None:
            return None
        score = BLEU().corpus_score(hypotheses, [[target for _, target in self._pairs]]).score
        places = range(0, len(hypotheses), max(1, len(hypotheses) // _SAMPLES))[:_SAMPLES]
        return DevBleu(score, [Sample(*self._pairs[i], hypotheses[i]) for i in places])

    def _hypotheses(self, interrupted):
        def translate(sentences):
            if interrupted():
                raise _GivenUp
            return self._translate(sentences)

        sources = [source.encode() for source, _ in self._pairs]
        try:
            answers = list(
                translate_lines(translate, sources, _SENTENCES_AT_ONCE, window=len(sources))
            )
        except _GivenUp:
            return None
        return [one_line(answer.text).decode(errors="replace") for answer in answers]
