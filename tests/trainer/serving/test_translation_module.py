"""Tests of translation modules with models that need no training, and of invalid settings."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from examples.synthetic_corpus import generate
from t2t_relpos.models import TransformerConfig
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.data.subword_tokenizer import SubwordTokenizer
from trainer.data.tokenizer import Tokenizers
from trainer.serving import translation_module
from trainer.serving.translation_module import TranslationModule, TranslationSettings
from trainer.serving.translator import Translator


class EndlessModel:
    """A model that predicts id 5 at every step, so that no sentence ends."""

    def __init__(self, vocab_size):
        self.config = TransformerConfig(vocab_size=vocab_size)

    def start_search(self, source, max_length, beam_size, growing=True):
        return {"cache": ops.zeros((ops.shape(source)[0], max_length))}, self.step

    def step(self, ids, state):
        always, never = (ops.one_hot(ids * 0 + i, self.config.vocab_size) for i in (5, 1))
        return 9.0 * (always - never), state


@pytest.mark.usefixtures("eager_functions")
def test_length_limit_depends_on_each_source_length():
    text = [word for pair in generate("train", size=59) for word in pair]
    tokenizer = SentencePieceTokenizer.train(text, vocab_size=101)
    module = TranslationModule(
        EndlessModel(101),
        Tokenizers.shared(tokenizer),
        TranslationSettings(beam_size=3, extra_length=7),
    )
    sentences = ["the man", "the man sees the dog in the house", "a"]
    piece = tokenizer.detokenize(tf.constant([[5, 0], [5, 5]])).numpy()
    step = len(piece[1]) - len(piece[0])
    for sentence, answer in zip(sentences, Translator(module.serve, module)(sentences)):
        limit = len(tokenizer.tokenize([sentence])[0]) + 7
        assert len(answer.text) == len(piece[0]) + (limit - 1) * step
        log_prob = limit * (9.0 - np.log(np.exp(9.0) + 99 + np.exp(-9.0)))
        assert answer.score == pytest.approx(log_prob / ((5 + limit) / 6) ** 0.6, rel=1e-3)


@pytest.mark.usefixtures("eager_functions")
def test_spaces_around_sentences_do_not_change_translations_of_imported_models():
    vocabulary = Path(__file__).parents[2] / "reference" / "subwords" / "sentences.vocab"
    tokenizer = SubwordTokenizer.from_file(vocabulary)
    settings = TranslationSettings(beam_size=2, extra_length=3)
    model, tokenizers = EndlessModel(tokenizer.vocab_size), Tokenizers.shared(tokenizer)
    module = TranslationModule(model, tokenizers, settings)
    blank, none, plain, padded = Translator(module.serve, module)([" ", "", "a dog", " a dog\t "])
    assert blank == none == (b"", 0.0, False, None, True)
    assert padded == plain and plain.text


@pytest.mark.usefixtures("eager_functions")
@pytest.mark.parametrize("early", [False, True])
def test_settings_are_those_of_the_search(early, tokenizer, monkeypatch):
    """The tests of `beam_search` have the effects of its arguments."""
    found, search = [], translation_module.beam_search

    def recording_search(*arguments, **options):
        found.append((options["beam_size"], options["alpha"], options["early_stopping"]))
        return search(*arguments, **options)

    monkeypatch.setattr(translation_module, "beam_search", recording_search)
    settings = TranslationSettings(extra_length=5, beam_size=2, alpha=4.0, early_stopping=early)
    model = EndlessModel(tokenizer.vocab_size)
    module = TranslationModule(model, Tokenizers.shared(tokenizer), settings)
    module.serve(tf.constant(["a"]))
    assert found == [(2, 4.0, early)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam_size": 0}, "Expected beam_size to be at least 1. Received: 0."),
        ({"max_input_length": 1}, "Expected max_input_length to be at least 2. Received: 1."),
        ({"extra_length": -1}, "Expected extra_length to be at least 0. Received: -1."),
        ({"beam_size": 33}, "Expected beam_size to be at most max_beam_size, 32. Received: 33."),
        ({"alpha": -0.1}, "Expected alpha to be at least 0.0. Received: -0.1."),
    ],
)
def test_settings_out_of_range_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        TranslationSettings(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab_size": 223}, "Expected a tokenizer with the model's 223 ids. Received: a"),
        (
            {"vocab_size": 211, "position": "learned", "max_length": 29},
            "max_input_length of at most 29, .* Received: 31. Use --max_input_length=29 or less",
        ),
        ({"vocab_size": 211, "max_beam_size": 999}, "Expected a beam size of at most 256 for a"),
    ],
)
def test_model_that_does_not_fit_raises(tokenizer, settings, message):
    widest = settings.pop("max_beam_size", 32)
    model = SimpleNamespace(config=TransformerConfig(**settings))
    limits = TranslationSettings(max_input_length=31, max_beam_size=widest)
    with pytest.raises(ValueError, match=message):
        TranslationModule(model, Tokenizers.shared(tokenizer), limits)
