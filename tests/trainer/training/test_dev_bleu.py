import pytest
from sacrebleu.metrics import BLEU

from examples.synthetic_corpus import generate
from trainer.data.corpus import PairCorpus
from trainer.model_dir import ModelDirectory
from trainer.serving.translation_module import TranslationModule, TranslationSettings
from trainer.serving.translator import Translator
from trainer.training.dev_bleu import DevTranslator, Sample


@pytest.fixture
def corpus():
    return PairCorpus(tuple(generate("dev", size=70)))


@pytest.fixture
def parts(trained_model_dir):
    directory = ModelDirectory.open(trained_model_dir)
    return directory.load_model(), directory.load_tokenizer()


def expected(trained_model_dir, corpus):
    """Returns BLEU and translations of the saved model."""
    module = TranslationModule.from_model_dir(trained_model_dir, TranslationSettings(beam_size=1))
    answers = [
        answer.text.decode() for answer in Translator(module.serve, module)(list(corpus.sources()))
    ]
    return BLEU().corpus_score(answers, [list(corpus.targets())]).score, answers


@pytest.mark.slow
def test_bleu_and_samples_equal_greedy_translations(trained_model_dir, parts, corpus):
    bleu, answers = expected(trained_model_dir, corpus)
    dev = DevTranslator(*parts, corpus, longest=60)()
    assert dev.bleu == pytest.approx(bleu) and bleu > 0
    assert dev.samples == [Sample(*corpus.pairs[i], answers[i]) for i in (0, 23, 46)]


def test_translations_use_the_current_weights(parts, corpus):
    model, tokenizer = parts
    translate = DevTranslator(model, tokenizer, corpus, longest=60)
    assert translate().bleu > 0
    before = model.get_weights()
    model.set_weights([0 * weight for weight in before])
    assert translate().bleu == 0
    model.set_weights(before)
    assert translate().bleu > 0


def test_samples_of_a_small_dev_set(parts):
    corpus = PairCorpus((("A dog.", "Ein Hund."), ("", "")))
    assert [sample.source for sample in DevTranslator(*parts, corpus, longest=9)().samples] == [
        "A dog.",
        "",
    ]


def test_interrupted_translation_returns_none(parts, corpus):
    calls = []

    def interrupted():
        calls.append(None)
        return len(calls) > 1

    assert DevTranslator(*parts, corpus, longest=60)(interrupted) is None
    assert len(calls) == 2
