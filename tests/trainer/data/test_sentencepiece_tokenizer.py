"""Tests of the SentencePiece tokenizer."""

import re

import pytest
import sentencepiece
import tensorflow as tf

from examples.synthetic_corpus import generate
from trainer.data.sentencepiece_tokenizer import NORMALIZATIONS, SentencePieceTokenizer

SENTENCES = [text for pair in generate("train", size=211) for text in pair]


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
    lines = [text for pair in generate("train", size=607) for text in pair]
    train = lambda lines, **options: (
        SentencePieceTokenizer.train(iter(lines), vocab_size=151, **options).fingerprint
    )
    sample = train(lines, max_sentences=211)
    assert sample == train(lines, max_sentences=211)
    assert sample != train(lines)
    assert sample != train(lines[:211]), "trained on the first sentences, not a sample"


def test_maximum_vocab_size_in_the_error_is_valid():
    with pytest.raises(ValueError) as raised:
        SentencePieceTokenizer.train(SENTENCES[:20], vocab_size=50021)
    most = int(re.search(r"vocab_size of at most (\d+),", str(raised.value))[1])
    assert SentencePieceTokenizer.train(SENTENCES[:20], vocab_size=most).vocab_size == most


def test_long_lines_and_reserved_characters_are_trained_on():
    """SentencePiece skips lines of more than 4,192 bytes, and lines with U+2585."""
    words = " ".join(["zebra quagga"] * 500)
    plain = SentencePieceTokenizer.train([*SENTENCES, *words.split(" ")], 307)
    for line in (words, words.replace(" ", "\u2585"), words.replace("zebra ", "zebra\u2585\u2585")):
        tokenizer = SentencePieceTokenizer.train([*SENTENCES, line], 307)
        assert {"▁zebra", "▁quagga"} < set(tokenizer.names)
        assert set(tokenizer.names) == set(plain.names)
    document = SentencePieceTokenizer.train([" ".join(SENTENCES)], 211)
    assert set(document.names) == set(SentencePieceTokenizer.train(SENTENCES, 211).names)


def test_words_may_be_longer_than_sentencepiece_allows():
    assert "你好世界" in SentencePieceTokenizer.train(["你好世界" * 20_000], 12).names


def test_normalization():
    lines = ["Ｈｅｌｌｏ！ … № ²", *SENTENCES]
    train = lambda rule: SentencePieceTokenizer.train(lines, 307, normalization=rule)
    for rule in NORMALIZATIONS:
        tokenizer = train(rule)
        text = tokenizer.detokenize(tokenizer.tokenize(lines[:1])).numpy()[0].decode()
        assert (text == lines[0]) == (rule == "identity")
        assert tokenizer.normalization == rule
        changed = ["a ½", " a  b ", "ａ", "a\u00a0b", "a"]
        assert tokenizer.count_normalized(changed) == {"identity": 0}.get(rule, 3)
    assert train("nmt_nfkc").fingerprint == SentencePieceTokenizer.train(lines, 307).fingerprint


@pytest.fixture(scope="module")
def with_bytes():
    return SentencePieceTokenizer.train(SENTENCES, vocab_size=400, byte_fallback=True)


def test_byte_fallback_leaves_no_character_unknown(with_bytes, tokenizer):
    assert with_bytes.byte_fallback and not tokenizer.byte_fallback
    unknown = tokenizer.tokenize(["Ω"])
    assert 2 in unknown.flat_values
    assert tokenizer.detokenize(unknown).numpy()[0].decode().strip() == "⁇"
    assert [with_bytes.names[i] for i in with_bytes.byte_ids][::255] == ["<0x00>", "<0xFF>"]
    texts = ["Ω and 你好", "the \u2585 dog", "\U0001f600"]
    ids = with_bytes.tokenize(texts)
    assert with_bytes.unk_id not in ids.flat_values
    assert [text.decode() for text in with_bytes.detokenize(ids).numpy()] == texts


def test_bytes_of_a_part_of_a_character_are_valid_utf8(with_bytes):
    ids = with_bytes.tokenize(["你 a"]).to_list()[0]
    for end in range(len(ids)):
        text = with_bytes.detokenize(tf.ragged.constant([ids[:end]], tf.int32)).numpy()[0]
        assert text.decode("utf-8").replace("\ufffd", "") in ("", "你", "你 a")


@pytest.mark.parametrize("size", [100, 261])
def test_minimum_vocab_size_with_bytes_in_the_error_is_valid(size):
    train = lambda size: SentencePieceTokenizer.train(SENTENCES, size, byte_fallback=True)
    message = "at least [0-9]+, the number of 256 bytes and the characters in these sentences"
    with pytest.raises(ValueError, match=message) as raised:
        train(size)
    assert train(int(re.search(r"at least (\d+)", str(raised.value))[1])).byte_fallback


@pytest.mark.parametrize(
    ("sentences", "vocab_size", "message"),
    [
        (SENTENCES, 50021, r"a vocab_size of at most \d+, .* Received: 50021. Lower vocab_size"),
        (SENTENCES, 11, r"a vocab_size of at least \d+, the number of characters.* Received: 11."),
        ([], 307, "sentences to train a vocabulary on. Received: only blank sentences."),
        (["", " \u2585"], 307, "sentences to train .*: only blank sentences."),
        (["\u200b"], 307, "sentences to train .*: only characters that normalization removes."),
    ],
    ids=["too large", "too small", "no sentence", "blank", "removed"],
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
