import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from examples.synthetic_corpus import generate
from t2t_relpos.models import TransformerConfig
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.data.subword_tokenizer import SubwordTokenizer
from trainer.model_dir import ModelDirectory
from trainer.serving.translation_module import TranslationModule, TranslationSettings
from trainer.serving.translator import Translator

TEN_THOUSAND_WORDS = "house " * 10_000
HOSTILE = [
    b"The dog \xff\xfe runs \x80.",
    b"",
    b" \t ",
    TEN_THOUSAND_WORDS.encode(),
    b"On Sunday the woman arrives.",
    b"\x00\x01\x02",
    b"\xed\xa0\x80\xc0\xaf",
    "犬が走る 🎉 собака".encode(),
    b"house" * 5_000,
    b"line\nbreak\r\nand\x0bmore",
    "\u2581\u200b\ufeff\u202e".encode(),
]
BLANK = {1, 2}


def ids_of(text, module):
    return module.tokenizer.tokenize(tf.constant([text])).to_tensor()


def assert_same(answers, expected):
    assert [answer.text for answer in answers] == [answer.text for answer in expected]
    assert [answer.truncated for answer in answers] == [answer.truncated for answer in expected]
    np.testing.assert_allclose([a.score for a in answers], [e.score for e in expected], atol=1e-4)


def greedy_without_cache(model, source, steps):
    """Returns the ids of greedy decoding without caches, and their total log-probability."""
    ids, total = [], 0.0
    for _ in range(steps):
        targets = np.array([ids + [2]])
        log_probs = ops.log_softmax(model({"inputs": source, "targets": targets})[0, -1]).numpy()
        log_probs[0] = -np.inf
        ids.append(int(log_probs.argmax()))
        total += log_probs.max()
        if ids[-1] == 1:
            break
    return ids, total


@pytest.mark.slow
def test_beam_size_1_equals_greedy_decoding_without_cache(
    make_module, trained_model_dir, sentences
):
    module = make_module(beam_size=1, extra_length=5)
    model = ModelDirectory.open(trained_model_dir).load_model()
    answers = Translator(module.serve, module)(sentences)
    for sentence, answer in sorted(zip(sentences, answers), key=lambda pair: len(pair[0]))[:2]:
        source = ids_of(sentence, module).numpy()
        ids, log_prob = greedy_without_cache(model, source, steps=source.shape[1] + 5)
        assert answer.text == module.tokenizer.detokenize(tf.constant([ids])).numpy()[0]
        assert answer.score == pytest.approx(log_prob / ((5 + len(ids)) / 6) ** 0.6, abs=1e-4)
    # A beam of 4 finds translations with higher scores on average.
    wide_module = make_module(extra_length=5)
    wide = wide_module.serve(tf.constant(sentences))
    assert np.mean(wide["scores"]) > np.mean([answer.score for answer in answers])


def test_translations_do_not_depend_on_the_batch(exported, sentences):
    together = exported(sentences)
    assert_same([exported([sentence])[0] for sentence in sentences], together)
    assert_same(exported(sentences[::-1])[::-1], together)


def test_translations_of_malformed_texts_do_not_depend_on_the_batch(exported):
    together = exported(HOSTILE)
    assert_same([exported([text])[0] for text in HOSTILE], together)
    for row, answer in enumerate(together):
        answer.text.decode("utf-8")
        assert np.isfinite(answer.score)
        if row in BLANK:
            assert answer[:3] == (b"", 0.0, False)
        elif row not in (6, 10):
            assert answer.score < 0.0
    assert [row for row, answer in enumerate(together) if answer.truncated] == [3, 8]


def test_invalid_utf8_equals_replacement_characters(exported):
    assert_same(exported([b"The dog \xff runs."]), exported(["The dog \ufffd runs."]))


def test_empty_batch_has_an_empty_result(exported, loaded):
    assert exported([]) == []
    answer = loaded.signatures["serving_default"](text=tf.zeros([0], tf.string))
    assert {name: (value.shape.as_list(), value.dtype) for name, value in answer.items()} == {
        "translations": ([0], tf.string),
        "scores": ([0], tf.float32),
        "truncated": ([0], tf.bool),
    }


def test_blank_sentences_have_empty_translations(exported):
    assert [answer[:3] for answer in exported(["", "  ", "\n"])] == [(b"", 0.0, False)] * 3


def test_long_input_is_truncated_at_the_end(make_module, trained_model_dir):
    words = "house house house house"
    tokenizer = ModelDirectory.open(trained_model_dir).load_tokenizer()
    module = make_module(
        max_input_length=int(tokenizer.tokenize(tf.constant([words])).row_lengths()[0]),
        extra_length=3,
    )
    whole, cut = Translator(module.serve, module)([words, words + " the man"])
    assert (whole.truncated, cut.truncated) == (False, True)
    assert (cut.text, cut.score) == (whole.text, pytest.approx(whole.score, abs=1e-5))


class EndlessModel:
    """A model that predicts id 5 at every step, so that no sentence ends."""

    def __init__(self, vocab_size):
        self.config = TransformerConfig(vocab_size=vocab_size)

    def start(self, source, max_length, beam_size, growing=True):
        return {"cache": ops.zeros((ops.shape(source)[0], max_length))}, self.step

    def step(self, ids, state):
        always, never = (ops.one_hot(ids * 0 + i, self.config.vocab_size) for i in (5, 1))
        return 9.0 * (always - never), state


def test_length_limit_depends_on_each_source_length():
    text = [word for pair in generate("train", size=59) for word in pair]
    tokenizer = SentencePieceTokenizer.train(text, vocab_size=101)
    module = TranslationModule(
        EndlessModel(101), tokenizer, TranslationSettings(beam_size=3, extra_length=7)
    )
    sentences = ["the man", "the man sees the dog in the house", "a"]
    piece = tokenizer.detokenize(tf.constant([[5, 0], [5, 5]])).numpy()
    step = len(piece[1]) - len(piece[0])
    for sentence, answer in zip(sentences, Translator(module.serve, module)(sentences)):
        limit = ids_of(sentence, module).shape[1] + 7
        assert len(answer.text) == len(piece[0]) + (limit - 1) * step
        log_prob = limit * (9.0 - np.log(np.exp(9.0) + 99 + np.exp(-9.0)))
        assert answer.score == pytest.approx(log_prob / ((5 + limit) / 6) ** 0.6, rel=1e-3)


def test_spaces_around_sentences_do_not_change_translations_of_imported_models():
    vocabulary = Path(__file__).parents[2] / "reference" / "subwords" / "sentences.vocab"
    tokenizer = SubwordTokenizer.from_file(vocabulary)
    settings = TranslationSettings(beam_size=2, extra_length=3)
    module = TranslationModule(EndlessModel(tokenizer.vocab_size), tokenizer, settings)
    blank, none, plain, padded = Translator(module.serve, module)([" ", "", "a dog", " a dog\t "])
    assert blank == none == (b"", 0.0, False, None)
    assert padded == plain and plain.text


def test_defaults_equal_the_settings_of_serving_default(loaded, sentences):
    text = tf.constant(sentences)
    assert {name: value.numpy() for name, value in loaded.defaults().items()} == {
        "beam_size": 4,
        "alpha": np.float32(0.6),
        "max_length": 47 + 50,
        "num_results": 1,
    }
    asked = loaded.signatures["translate"](text=text, **loaded.defaults())
    served = loaded.signatures["serving_default"](text=text)
    assert asked["translations"][:, 0].numpy().tolist() == served["translations"].numpy().tolist()
    np.testing.assert_allclose(asked["scores"][:, 0], served["scores"], atol=1e-5)
    assert asked["truncated"].numpy().tolist() == served["truncated"].numpy().tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam_size": 0}, "Expected beam_size to be at least 1. Received: 0."),
        ({"beam_size": True}, "Expected beam_size to be of type int. Received: True."),
        (
            {"max_input_length": 1},
            "Expected max_input_length to be at least 2. Received: 1.",
        ),
        (
            {"extra_length": -1},
            "Expected extra_length to be at least 0. Received: -1.",
        ),
        (
            {"max_beam_size": 0},
            "Expected max_beam_size to be at least 1. Received: 0.",
        ),
        (
            {"beam_size": 33},
            "Expected beam_size to be at most max_beam_size, 32. Received: 33. Give "
            "--max_beam_size=33, or",
        ),
        ({"alpha": -0.1}, "Expected alpha to be at least 0.0. Received: -0.1."),
        ({"alpha": float("nan")}, "Expected alpha to be at least 0.0. Received: nan."),
        ({"alpha": float("inf")}, "Expected alpha to be below inf. Received: inf."),
    ],
)
def test_settings_out_of_range_raise(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        TranslationSettings(**settings)


def test_tokenizer_with_another_vocabulary_size_raises(trained_model_dir):
    tokenizer = ModelDirectory.open(trained_model_dir).load_tokenizer()
    with pytest.raises(
        ValueError,
        match="Expected a tokenizer with the model's 223 ids. Received: a tokenizer with 211 ids.",
    ):
        TranslationModule(EndlessModel(223), tokenizer)


def test_max_input_length_above_learned_positions_raises(trained_model_dir):
    tokenizer = ModelDirectory.open(trained_model_dir).load_tokenizer()
    model = EndlessModel(211)
    model.config = TransformerConfig(vocab_size=211, position="learned", max_length=29)
    with pytest.raises(
        ValueError,
        match="max_input_length of at most 29, .* Received: 31. Use --max_input_length=29 or less",
    ):
        TranslationModule(model, tokenizer, TranslationSettings(max_input_length=31))
