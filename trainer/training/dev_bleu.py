"""BLEU of the model in training on the dev set."""

from collections.abc import Callable
from typing import NamedTuple

import keras
from sacrebleu.metrics import BLEU

from trainer.data.corpus import Corpus
from trainer.serving.plain_transformer import PlainTransformer
from trainer.serving.translation_module import TranslationModule, TranslationSettings
from trainer.serving.translator import Translator, one_line, translate_lines

_SAMPLES = 3
_BATCH_SIZE = 64


class Sample(NamedTuple):
    """A sentence pair of the dev set and the model's translation."""

    source: str
    reference: str
    translation: str


class DevBleu(NamedTuple):
    """The sacreBLEU score of the dev set (cased, detokenized, 0 to 100) and sample translations."""

    bleu: float
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
    """

    def __init__(self, transformer: keras.Model, tokenizer, corpus: Corpus, longest: int):
        if transformer.config.position == "learned":
            longest = min(longest, transformer.config.max_length)
        settings = TranslationSettings(beam_size=1, max_input_length=max(longest, 2))
        module = TranslationModule(PlainTransformer(transformer), tokenizer, settings)
        self._translate = Translator(module.serve, module)
        self._pairs = list(corpus)

    def __call__(self, interrupted: Callable[[], bool] = lambda: False) -> DevBleu | None:
        """Returns BLEU and samples, or None if `interrupted()` returns True before a batch."""

        def translate(sentences):
            if interrupted():
                raise _Interrupted
            return self._translate(sentences)

        sources = [source.encode() for source, _ in self._pairs]
        try:
            answers = list(translate_lines(translate, sources, _BATCH_SIZE, window=len(sources)))
        except _Interrupted:
            return None
        hypotheses = [one_line(answer.text).decode(errors="replace") for answer in answers]
        score = BLEU().corpus_score(hypotheses, [[target for _, target in self._pairs]]).score
        rows = range(0, len(hypotheses), max(1, len(hypotheses) // _SAMPLES))[:_SAMPLES]
        return DevBleu(score, [Sample(*self._pairs[i], hypotheses[i]) for i in rows])
