"""Tests of the subword tokenizer, compared with recorded results of tensor2tensor and with
`t2t_relpos.t2t.subwords`.
"""

import gzip
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import compare_subwords
import pytest
import tensorflow as tf

from examples.synthetic_corpus import generate
from t2t_relpos.t2t.subwords import SubwordVocabulary, alphanumeric_characters
from trainer.data.subword_tokenizer import SubwordTokenizer

RECORDED = {
    path.stem: path
    for path in (Path(__file__).parents[2] / "reference" / "subwords").glob("*.vocab")
}
SENTENCES = [text for pair in generate("test", size=53) for text in pair]


@pytest.fixture(params=["hostile", "sentences", "small", "unquoted"])
def recorded(request):
    """Returns a tokenizer with a vocabulary of tensor2tensor, and the recorded results."""
    path = RECORDED[request.param]
    return SubwordTokenizer.from_file(path), json.loads(path.with_suffix(".json").read_text())


@pytest.fixture(scope="module")
def tokenizer():
    return SubwordTokenizer.from_file(RECORDED["sentences"])


def test_encodings_and_decodings_equal_tensor2tensor():
    rows = list(compare_subwords.rows())
    assert [name for name, *_ in rows] == sorted(RECORDED)
    for name, _, wrong_encodings, _, wrong_decodings, decodings in rows:
        assert wrong_encodings == wrong_decodings == 0, name
        assert decodings > 570, name


def test_tokenize_returns_int32_rows(tokenizer):
    ids = tokenizer.tokenize(tf.constant(SENTENCES[:2]))
    assert ids.dtype == tf.int32 and ids.ragged_rank == 1


@pytest.mark.slow
def test_single_strings_equal_a_batch(recorded):
    tokenizer, expected = recorded
    for text, ids in expected["encoded"][::29]:
        assert tokenizer.tokenize(tf.constant([text])).to_list() == [ids + [1]]
        assert tokenizer.detokenize(tf.constant([ids + [1]])).numpy().tolist() == [text.encode()]


def test_tokenizer_in_a_graph_and_with_an_empty_batch(tokenizer):
    round_trip = tf.function(
        lambda strings: tokenizer.detokenize(tokenizer.tokenize(strings)),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    assert round_trip(tf.constant([], tf.string)).numpy().tolist() == []
    assert round_trip(tf.constant(["", ""])).numpy().tolist() == [b"", b""]
    texts = [SENTENCES[2].encode(), b"", " tab\t_ Ж ".encode(), SENTENCES[5].encode()]
    assert round_trip(tf.constant(texts)).numpy().tolist() == texts
    assert tokenizer.tokenize(tf.constant([], tf.string)).to_list() == []
    assert tokenizer.tokenize(tf.constant(["", ""])).to_list() == [[1], [1]]
    assert tokenizer.detokenize(tf.zeros([0, 5], tf.int32)).numpy().tolist() == []
    assert tokenizer.detokenize(tf.zeros([3, 0], tf.int32)).numpy().tolist() == [b"", b"", b""]


def test_tokenizer_works_in_a_dataset_after_set_seed(tokenizer):
    text = tf.constant(SENTENCES[:5])
    before = tokenizer.tokenize(text).to_list()
    tf.random.set_seed(7)
    dataset = tf.data.Dataset.from_tensors(text).map(tokenizer.tokenize)
    assert next(iter(dataset)).to_list() == tokenizer.tokenize(text).to_list() == before


def test_detokenize_stops_at_eos_and_ignores_padding(tokenizer):
    first, second = tokenizer.tokenize(tf.constant(SENTENCES[:2])).to_list()
    expected = [SENTENCES[0].encode(), SENTENCES[1].encode(), b""]
    ragged = tf.ragged.constant([first + second, second[:-1], [1] + first], dtype=tf.int32)
    assert tokenizer.detokenize(ragged).numpy().tolist() == expected
    assert tokenizer.detokenize(ragged.to_tensor(0)).numpy().tolist() == expected
    assert (
        tokenizer.detokenize(tf.constant([[0, *first[:-1], 0, 0]], tf.int64)).numpy().tolist()
        == expected[:1]
    )


def test_invalid_utf8_is_replaced(tokenizer):
    strings = [b"The \xff\xfe man", "The \ufffd\ufffd man".encode(), b"\xed\xa0\x80", b"\xe4\xbd"]
    ids = tokenizer.tokenize(tf.constant(strings))
    rows = ids.to_list()
    assert rows[0] == rows[1]
    replaced = ["The \ufffd\ufffd man", "The \ufffd\ufffd man", "\ufffd\ufffd\ufffd", "\ufffd"]
    assert tokenizer.detokenize(ids).numpy().tolist() == [text.encode() for text in replaced]


def test_alphanumeric_characters_equal_unicodedata(tokenizer):
    characters = [chr(i) for i in range(0x110000) if not 0xD800 <= i < 0xE000]
    letters = set(alphanumeric_characters())
    contained = tokenizer._alphanumeric.contain(tf.constant(list(map(ord, characters)))).numpy()
    assert contained.tolist() == [character in letters for character in characters]


@pytest.mark.slow
def test_exported_graph_requires_tensorflow_only(tmp_path):
    tokenizer = SubwordTokenizer.from_file(RECORDED["hostile"])
    module = tf.Module()
    module.tokenizer = tokenizer
    signature = [tf.TensorSpec([None], tf.string)]
    module.split = tf.function(
        lambda text: tokenizer.tokenize(text).to_tensor(0), input_signature=signature
    )
    module.both = tf.function(
        lambda text: tokenizer.detokenize(tokenizer.tokenize(text)), input_signature=signature
    )
    tf.saved_model.save(module, str(tmp_path / "module"))
    text = "The snake_case\\man, \U0001f600 and \x00 Ω"
    program = (
        "import sys; import tensorflow as tf\n"
        f"module = tf.saved_model.load({str(tmp_path / 'module')!r})\n"
        f"text = tf.constant([{text!r}])\n"
        "assert tf.reduce_all(module.both(text) == text)\n"
        "assert not any(name.startswith(('trainer', 't2t_relpos', 'tensorflow_text')) for name in "
        "sys.modules)\n"
        "print(module.split(text).numpy().tolist())"
    )
    environment = os.environ | {"PYTHONPATH": ""}
    printed = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=environment,
    ).stdout
    assert printed.strip() == str(tokenizer.tokenize(tf.constant([text])).to_list())


def test_save_and_from_file(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "vocab.subwords")
    assert (tmp_path / "vocab.subwords").read_bytes() == RECORDED["sentences"].read_bytes()
    again = SubwordTokenizer.from_file(tmp_path / "vocab.subwords")
    assert again.fingerprint == tokenizer.fingerprint
    assert again.vocab_size == tokenizer.vocab_size == 305
    text = tf.constant(SENTENCES[7:11])
    assert again.tokenize(text).to_list() == tokenizer.tokenize(text).to_list()
    assert SubwordTokenizer.from_file(RECORDED["small"]).fingerprint != tokenizer.fingerprint


def test_from_file_of_a_missing_or_other_file_raises(tmp_path):
    with pytest.raises(
        ValueError,
        match="Expected a vocabulary of tensor2tensor at .*none.subwords. Received: no such file.",
    ):
        SubwordTokenizer.from_file(tmp_path / "none.subwords")
    (tmp_path / "other.vocab").write_text("the\nof\n")
    with pytest.raises(
        ValueError,
        match="other.vocab: Expected a vocabulary of tensor2tensor, .* Received: 'the', 'of'. Pass",
    ):
        SubwordTokenizer.from_file(tmp_path / "other.vocab")
    (tmp_path / "short.vocab").write_bytes(RECORDED["sentences"].read_bytes()[:1001])
    with pytest.raises(
        ValueError,
        match="short.vocab: Expected every character of the vocabulary, .* The file is cut short",
    ):
        SubwordTokenizer.from_file(tmp_path / "short.vocab")


@pytest.mark.parametrize("wrong", [305, -1])
def test_ids_outside_the_vocabulary_raise(tokenizer, wrong):
    with pytest.raises(
        ValueError,
        match=f"Expected ids from 0 to 304, as in the vocabulary. Received: {wrong}. Use the",
    ):
        tokenizer.detokenize(tf.constant([[5, wrong, 1]]))


def frequent_pieces(lines, size):
    """Returns a vocabulary file with the most frequent words of a text and their prefixes."""
    words = Counter(
        word + "_"
        for line in lines
        for word in re.findall(r"\w+|[^\w\s]+", line)
        if "_" not in word
    )
    pieces = Counter()
    for word, count in words.items():
        for end in range(2, len(word) + 1):
            pieces[word[:end]] += count
    subtokens = ["<pad>_", "<EOS>_", " ", *(piece for piece, _ in pieces.most_common(size))]
    characters = set(r"\_u;0123456789").union(*subtokens)
    return "".join(f"'{subtoken}'\n" for subtoken in [*subtokens, *sorted(characters)]).encode()


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["wmt_sample", "multi30k"])
def test_real_text_equals_the_python_vocabulary(real_text, folder):
    files = sorted(real_text(folder).glob("*.gz"))
    assert files
    texts = [gzip.decompress(file.read_bytes()).decode() for file in files]
    lines = [line for text in texts for line in text.split("\n")][::11]
    contents = frequent_pieces(lines, 4001), RECORDED["small"].read_bytes()
    for content in contents:
        plain, tokenizer = SubwordVocabulary.from_bytes(content), SubwordTokenizer(content)
        for start in range(0, len(lines), 8192):
            chunk = lines[start : start + 8192]
            expected = [plain.encode(line) for line in chunk]
            ids = tokenizer.tokenize(tf.constant(chunk))
            assert ids.to_list() == [row + [1] for row in expected]
            texts = [text.decode() for text in tokenizer.detokenize(ids).numpy()]
            assert texts == [plain.decode(row) for row in expected] == chunk
