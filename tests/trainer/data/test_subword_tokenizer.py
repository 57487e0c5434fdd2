"""Tests of the subword tokenizer, compared with recorded results of tensor2tensor and with
`t2t_relpos.t2t.subwords`.
"""

import json

import compare_subwords
import pytest
import tensorflow as tf

from t2t_relpos.t2t.subwords import alphanumeric_characters
from trainer.data.subword_tokenizer import SubwordTokenizer

RECORDED = {path.stem: path for path in compare_subwords.VOCABULARIES}


@pytest.fixture(scope="module")
def tokenizer():
    return SubwordTokenizer.from_file(RECORDED["sentences"])


def test_encodings_and_decodings_equal_tensor2tensor():
    rows = list(compare_subwords.rows())
    assert [name for name, *_ in rows] == ["hostile", "sentences", "small", "unquoted"]
    for name, _, wrong_encodings, _, wrong_decodings, decodings in rows:
        assert wrong_encodings == wrong_decodings == 0, name
        assert decodings > 570, name


def test_single_strings_equal_a_batch():
    tokenizer = SubwordTokenizer.from_file(RECORDED["hostile"])
    recorded = json.loads(RECORDED["hostile"].with_suffix(".json").read_text())
    for text, ids in recorded["encoded"][::29]:
        assert tokenizer.tokenize(tf.constant([text])).to_list() == [ids + [1]]
        assert tokenizer.detokenize(tf.constant([ids + [1]])).numpy().tolist() == [text.encode()]


def test_spaces_and_rare_characters_are_kept(tokenizer):
    texts = [b"", " tab\t_ Ж ".encode()]
    assert tokenizer.detokenize(tokenizer.tokenize(tf.constant(texts))).numpy().tolist() == texts


def test_invalid_utf8_is_replaced(tokenizer):
    strings = [b"The \xff\xfe man", "The \ufffd\ufffd man".encode(), b"\xed\xa0\x80", b"\xe4\xbd"]
    ids = tokenizer.tokenize(tf.constant(strings))
    assert ids.dtype == tf.int32 and ids.ragged_rank == 1
    rows = ids.to_list()
    assert rows[0] == rows[1]
    replaced = ["The \ufffd\ufffd man", "The \ufffd\ufffd man", "\ufffd\ufffd\ufffd", "\ufffd"]
    assert tokenizer.detokenize(ids).numpy().tolist() == [text.encode() for text in replaced]


def test_alphanumeric_characters_equal_unicodedata(tokenizer):
    characters = [chr(i) for i in range(0x110000) if not 0xD800 <= i < 0xE000]
    letters = set(alphanumeric_characters())
    contained = tokenizer._alphanumeric.contain(tf.constant(list(map(ord, characters)))).numpy()
    assert contained.tolist() == [character in letters for character in characters]


def test_save_writes_the_vocabulary_file_of_tensor2tensor(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "vocab.subwords")
    assert (tmp_path / "vocab.subwords").read_bytes() == RECORDED["sentences"].read_bytes()
    assert SubwordTokenizer.from_file(RECORDED["small"]).fingerprint != tokenizer.fingerprint


def test_from_file_of_a_missing_or_other_file_raises(tmp_path):
    (tmp_path / "other.vocab").write_text("the\nof\n")
    (tmp_path / "short.vocab").write_bytes(RECORDED["sentences"].read_bytes()[:1001])
    kind = "Expected a vocabulary of tensor2tensor"
    for name, message in (
        ("none", f"{kind} at .*none.vocab. Received: no such file."),
        ("other", f"other.vocab: {kind}, .* Received: 'the', 'of'. Pass"),
        ("short", "short.vocab: Expected every character of the vocabulary, .* The file is cut"),
    ):
        with pytest.raises(ValueError, match=message):
            SubwordTokenizer.from_file(tmp_path / f"{name}.vocab")
