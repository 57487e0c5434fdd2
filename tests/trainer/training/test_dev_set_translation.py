from types import SimpleNamespace

import pytest
from sacrebleu.metrics import BLEU, CHRF
from small_transformers import small_config

from examples.synthetic_corpus import generate
from trainer.data.corpus import PairCorpus
from trainer.model_dir import ModelDirectory
from trainer.serving.translation_module import TranslationModule, TranslationSettings
from trainer.serving.translator import Translation, Translator
from trainer.training import dev_set
from trainer.training.dev_set import DevTranslator, Sample


@pytest.fixture
def corpus():
    return PairCorpus(tuple(generate("dev", size=70)))


@pytest.fixture
def parts(trained_model_dir):
    directory = ModelDirectory.open(trained_model_dir)
    return directory.load_model(), directory.load_tokenizers()


@pytest.mark.slow
def test_bleu_and_samples_equal_greedy_translations(trained_model_dir, parts, corpus):
    module = TranslationModule.from_model_dir(trained_model_dir, TranslationSettings(beam_size=1))
    translations = Translator(module.serve, module)(list(corpus.sources()))
    answers = [translation.text.decode() for translation in translations]
    bleu = BLEU().corpus_score(answers, [list(corpus.targets())]).score
    dev = DevTranslator(*parts, corpus, longest=60)()
    assert dev.bleu == pytest.approx(bleu) and bleu > 0
    chrf = CHRF().corpus_score(answers, [list(corpus.targets())]).score
    assert dev.chrf == pytest.approx(chrf) and chrf > 0
    assert dev.samples == [Sample(*corpus.pairs[i], answers[i]) for i in (0, 23, 46)]


def test_translations_use_the_current_weights(parts, corpus):
    model, tokenizers = parts
    translate = DevTranslator(model, tokenizers, corpus, longest=60)
    assert translate().bleu > 0
    before = model.get_weights()
    model.set_weights([0 * weight for weight in before])
    assert translate().bleu == 0
    model.set_weights(before)
    assert translate().bleu > 0


@pytest.fixture
def lowered(monkeypatch):
    """Returns a function that makes a `DevTranslator` which returns sources in lower case."""
    lower = lambda sentences: [Translation(text.lower(), 0.0, False) for text in sentences]
    monkeypatch.setattr(dev_set, "TranslationModule", lambda *_: SimpleNamespace(serve=None))
    monkeypatch.setattr(dev_set, "Translator", lambda *_: lower)
    transformer = SimpleNamespace(config=small_config())
    return lambda corpus, **options: DevTranslator(transformer, None, corpus, 9, **options)


def test_samples_of_a_small_dev_set(lowered):
    pairs = ("A dog.", "Ein Hund."), ("", "")
    samples = lowered(PairCorpus(pairs))().samples
    assert samples == [Sample("A dog.", "Ein Hund.", "a dog."), Sample("", "", "")]


def test_bleu_of_text_without_spaces_needs_a_tokenizer(lowered):
    corpus = PairCorpus((("你好，世界！", "你好，世界！"), ("今天天气很好。", "今天天气很好。")))
    assert lowered(corpus)().bleu == 0
    assert lowered(corpus, bleu_tokenize="zh")().bleu == pytest.approx(100)
    assert lowered(corpus)().chrf == pytest.approx(100)


def test_interrupted_translation_returns_none(lowered, corpus):
    calls = []

    def interrupted():
        calls.append(None)
        return len(calls) > 1

    translate = lowered(corpus)
    assert translate(interrupted) is None
    assert len(calls) == 2
    assert [sample.source for sample in translate().samples] == [
        corpus.pairs[i][0] for i in (0, 23, 46)
    ]
