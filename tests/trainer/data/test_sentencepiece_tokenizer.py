"""Tests of the SentencePiece tokenizer."""

import re

import pytest
import sentencepiece
import tensorflow as tf

from examples.synthetic_corpus import generate
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer

SENTENCES = [text for pair in generate("dev", size=211) for text in pair]


def test_detokenize_inverts_tokenize(tokenizer):
    ids = tokenizer.tokenize(tf.constant(SENTENCES[:31]))
    assert ids.dtype == tf.int32
    for row in ids.to_list():
        assert row[-1] == 1 and row.count(1) == 1
        assert all(2 < i < 307 for i in row[:-1])
    assert [text.decode() for text in tokenizer.detokenize(ids).numpy()] == SENTENCES[:31]


def test_tokenize_equals_the_sentencepiece_package(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "vocab.model")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "vocab.model"))
    assert tokenizer.vocab_size == processor.get_piece_size() == 307
    texts = SENTENCES[:13] + ["", "  two  spaces ", "ſtrange ﬁgures ½"]
    assert tokenizer.tokenize(tf.constant(texts)).to_list() == [
        processor.encode(text) + [1] for text in texts
    ]


def test_invalid_utf8_is_replaced(tokenizer):
    strings = [b"The \xff\xfe man", "The \ufffd\ufffd man".encode(), b"The man"]
    broken, replaced, plain = tokenizer.tokenize(tf.constant(strings)).to_list()
    # SentencePiece's normalization converts U+FFFD to a space.
    assert broken == replaced == plain


def test_training_is_deterministic_and_prints_nothing(tokenizer, capfd):
    again = SentencePieceTokenizer.train(iter(SENTENCES), vocab_size=307)
    assert capfd.readouterr() == ("", "")
    assert again.fingerprint == tokenizer.fingerprint
    assert again.vocab_size == 307


def test_training_on_a_sample_is_deterministic():
    lines = [text for pair in generate("train", size=607) for text in pair]
    train = lambda lines, **options: (
        SentencePieceTokenizer.train(iter(lines), vocab_size=151, **options).fingerprint
    )
    sample = train(lines, max_sentences=211)
    assert sample == train(lines, max_sentences=211)
    assert sample != train(lines)
    assert sample != train(lines[:211]), "trained on the first sentences, not a sample"


def test_characters_outside_the_vocabulary_are_unknown(tokenizer):
    ids = tokenizer.tokenize(tf.constant(["Ω"]))
    assert 2 in ids.to_list()[0]
    assert tokenizer.detokenize(ids).numpy()[0].decode().strip() == "⁇"


def test_maximum_vocab_size_in_the_error_is_valid():
    with pytest.raises(ValueError) as raised:
        SentencePieceTokenizer.train(SENTENCES[:20], vocab_size=50021)
    most = int(re.search(r"vocab_size of at most (\d+),", str(raised.value))[1])
    assert SentencePieceTokenizer.train(SENTENCES[:20], vocab_size=most).vocab_size == most


@pytest.mark.parametrize(
    ("sentences", "vocab_size", "message"),
    [
        (SENTENCES, 50021, r"a vocab_size of at most \d+, .* Received: 50021. Lower vocab_size"),
        (SENTENCES, 11, r"a vocab_size of at least \d+, the number of characters.* Received: 11."),
        ([], 307, "sentences to train a vocabulary on. Received: only blank sentences."),
        (["", "  "], 307, "sentences to train a vocabulary on. Received: only blank sentences."),
    ],
    ids=["too large", "too small", "no sentence", "blank sentences"],
)
def test_training_that_is_impossible_raises(sentences, vocab_size, message):
    with pytest.raises(ValueError, match=f"Expected {message}"):
        SentencePieceTokenizer.train(sentences, vocab_size)


def test_from_file_of_a_missing_or_other_file_raises(tmp_path):
    (tmp_path / "text.model").write_text("no model")
    foreign = {"model_prefix": str(tmp_path / "foreign"), "vocab_size": 307, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(SENTENCES), **foreign)
    for name, message in (
        ("none", "Expected a SentencePiece model at .*none.model. Received: no such file."),
        ("text", "text.model: Expected a serialized SentencePiece model. Received: 8 bytes"),
        (
            "foreign",
            "Expected a SentencePiece model with pad 0, .* Received: pad -1, eos 2, unk 0, bos 1.",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            SentencePieceTokenizer.from_file(tmp_path / f"{name}.model")
