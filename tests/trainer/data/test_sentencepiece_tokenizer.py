"""Tests of the SentencePiece tokenizer."""

import pytest
import sentencepiece
import tensorflow as tf

from examples.synthetic_corpus import generate
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer

SENTENCES = [text for pair in generate("dev", size=211) for text in pair]


def train_with_sentencepiece(path, **settings):
    """Trains a model with the sentencepiece package and returns its file."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_prefix=str(path),
        vocab_size=307,
        minloglevel=2,
        **settings,
    )
    return path.with_suffix(".model")


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


def test_training_is_deterministic_and_prints_nothing(capfd):
    first = SentencePieceTokenizer.train(SENTENCES, vocab_size=307)
    second = SentencePieceTokenizer.train(iter(SENTENCES), vocab_size=307)
    assert capfd.readouterr() == ("", "")
    assert first.fingerprint == second.fingerprint
    assert first.vocab_size == 307
    text = tf.constant(SENTENCES[:3])
    assert first.detokenize(first.tokenize(text)).numpy().tolist() == [
        text.encode() for text in SENTENCES[:3]
    ]


def test_training_on_a_sample_is_deterministic():
    lines = [text for pair in generate("train", size=607) for text in pair]
    everything = SentencePieceTokenizer.train(lines, vocab_size=151)
    sample = SentencePieceTokenizer.train(
        (line for line in lines), vocab_size=151, max_sentences=211
    )
    again = SentencePieceTokenizer.train(
        (line for line in lines), vocab_size=151, max_sentences=211
    )
    assert sample.fingerprint == again.fingerprint
    assert sample.fingerprint != everything.fingerprint
    first = SentencePieceTokenizer.train(lines[:211], vocab_size=151)
    assert sample.fingerprint != first.fingerprint, "trained on the first sentences, not a sample"


def test_characters_outside_the_vocabulary_are_unknown(tokenizer):
    ids = tokenizer.tokenize(tf.constant(["Ω"]))
    assert 2 in ids.to_list()[0]
    assert tokenizer.detokenize(ids).numpy()[0].decode().strip() == "⁇"


def test_vocab_size_above_the_maximum_raises():
    with pytest.raises(
        ValueError,
        match=r"Expected a vocab_size of at most \d+, .* Received: 50021. Lower vocab_size",
    ):
        SentencePieceTokenizer.train(SENTENCES, vocab_size=50021)


def test_maximum_vocab_size_in_the_error_is_valid():
    with pytest.raises(ValueError) as raised:
        SentencePieceTokenizer.train(SENTENCES[:20], vocab_size=50021)
    most = int(str(raised.value).partition("at most ")[2].partition(",")[0])
    assert SentencePieceTokenizer.train(SENTENCES[:20], vocab_size=most).vocab_size == most


def test_vocab_size_below_the_number_of_characters_raises():
    with pytest.raises(
        ValueError,
        match=r"Expected a vocab_size of at least \d+, the number of characters.* Received: 11.",
    ):
        SentencePieceTokenizer.train(SENTENCES, vocab_size=11)


@pytest.mark.parametrize("sentences", [[], ["", "  "]])
def test_training_without_sentences_raises(sentences):
    with pytest.raises(
        ValueError,
        match="Expected sentences to train a vocabulary on. Received: only blank sentences.",
    ):
        SentencePieceTokenizer.train(sentences, vocab_size=307)


def test_from_file_of_a_missing_or_other_file_raises(tmp_path):
    with pytest.raises(
        ValueError, match="Expected a SentencePiece model at .*none.model. Received: no such file."
    ):
        SentencePieceTokenizer.from_file(tmp_path / "none.model")
    (tmp_path / "text.model").write_text("no model")
    with pytest.raises(
        ValueError, match="text.model: Expected a serialized SentencePiece model. Received: 8 bytes"
    ):
        SentencePieceTokenizer.from_file(tmp_path / "text.model")
    foreign = train_with_sentencepiece(tmp_path / "foreign")
    with pytest.raises(
        ValueError,
        match=(
            "Expected a SentencePiece model with pad 0, .* Received: pad -1, eos 2, unk 0, bos 1."
        ),
    ):
        SentencePieceTokenizer.from_file(foreign)
