"""Tests that both tokenizers pass."""

import compare_subwords
import pytest
import tensorflow as tf
from subprocesses import environment, run_python

from examples.synthetic_corpus import generate
from trainer.data.subword_tokenizer import SubwordTokenizer

SENTENCES = [text for pair in generate("train", size=53) for text in pair]
VOCABULARIES = {path.stem: path for path in compare_subwords.VOCABULARIES}
SIZES = {"sentencepiece": 307, "subwords": 305}
SIGNATURE = [tf.TensorSpec([None], tf.string)]


@pytest.fixture(params=SIZES)
def kind(request):
    return request.param


@pytest.fixture
def tokenizer(kind, tokenizer):
    if kind == "sentencepiece":
        return tokenizer
    return SubwordTokenizer.from_file(VOCABULARIES["sentences"])


def test_tokenizer_in_a_graph_and_with_an_empty_batch(tokenizer):
    both = lambda strings: tokenizer.detokenize(tokenizer.tokenize(strings))
    round_trip = tf.function(both, input_signature=SIGNATURE)
    assert round_trip(tf.constant([], tf.string)).numpy().tolist() == []
    assert round_trip(tf.constant(["", ""])).numpy().tolist() == [b"", b""]
    texts = [SENTENCES[2].encode(), b"", SENTENCES[5].encode()]
    assert round_trip(tf.constant(texts)).numpy().tolist() == texts
    assert tokenizer.tokenize(tf.constant([], tf.string)).to_list() == []
    assert tokenizer.tokenize(tf.constant(["", ""])).to_list() == [[1], [1]]
    assert tokenizer.detokenize(tf.zeros([0, 5], tf.int32)).numpy().tolist() == []
    assert tokenizer.detokenize(tf.zeros([3, 0], tf.int32)).numpy().tolist() == [b"", b"", b""]


def test_tokenizer_works_after_set_seed(tokenizer):
    split = tf.function(lambda strings: tokenizer.tokenize(strings).to_tensor(0))
    text = tf.constant(SENTENCES[:5])
    before = split(text).numpy().tolist()
    tf.random.set_seed(7)
    assert split(text).numpy().tolist() == before
    assert tokenizer.tokenize(text).to_tensor(0).numpy().tolist() == before
    (rows,) = tf.data.Dataset.from_tensors(text).map(tokenizer.tokenize)
    assert rows.to_tensor(0).numpy().tolist() == before


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_detokenize_stops_at_eos_and_ignores_padding(tokenizer, dtype):
    first, second = tokenizer.tokenize(tf.constant(SENTENCES[:2])).to_list()
    expected = [SENTENCES[0].encode(), SENTENCES[1].encode(), b""]
    ragged = tf.ragged.constant([first + second, second[:-1], [1] + first], dtype=dtype)
    assert tokenizer.detokenize(ragged).numpy().tolist() == expected
    assert tokenizer.detokenize(ragged.to_tensor(0)).numpy().tolist() == expected
    padded = tf.constant([[0, *first[:-1], 0, 0]], dtype)
    assert tokenizer.detokenize(padded).numpy().tolist() == expected[:1]


def test_save_and_from_file(kind, tokenizer, tmp_path):
    tokenizer.save(tmp_path / "vocabulary")
    again = type(tokenizer).from_file(tmp_path / "vocabulary")
    assert again.fingerprint == tokenizer.fingerprint
    assert again.vocab_size == tokenizer.vocab_size == SIZES[kind]
    text = tf.constant(SENTENCES[7:11])
    assert again.tokenize(text).to_list() == tokenizer.tokenize(text).to_list()


def test_ids_outside_the_vocabulary_raise(kind, tokenizer):
    size = SIZES[kind]
    for wrong in (size, -1):
        message = f"Expected ids from 0 to {size - 1}, .* Received: {wrong}. Use the"
        with pytest.raises(ValueError, match=message):
            tokenizer.detokenize(tf.constant([[5, wrong, 1]]))


@pytest.mark.slow
def test_exported_graph_of_subwords_requires_only_tensorflow(tmp_path):
    tokenizer = SubwordTokenizer.from_file(VOCABULARIES["hostile"])
    text = "The snake_case\\man, \U0001f600 and \x00 Ω"
    split = lambda text: tokenizer.tokenize(text).to_tensor(0)
    both = lambda text: tokenizer.detokenize(tokenizer.tokenize(text))
    module = tf.Module()
    module.tokenizer = tokenizer
    module.split, module.both = (tf.function(f, input_signature=SIGNATURE) for f in (split, both))
    tf.saved_model.save(module, str(tmp_path / "module"))
    program = f"""
import sys
import tensorflow as tf
module = tf.saved_model.load({str(tmp_path / "module")!r})
text = tf.constant([{text!r}])
ids = module.split(text)
tf.random.set_seed(7)
assert tf.reduce_all(ids == module.split(text))
assert tf.reduce_all(module.both(text) == text)
assert not {{"trainer", "t2t_relpos", "tensorflow_text"}} & sys.modules.keys()
print(ids.numpy().tolist())
"""
    done = run_python("-c", program, cwd=tmp_path, env=environment(PYTHONPATH=""))
    assert done.stdout.strip() == str(tokenizer.tokenize(tf.constant([text])).to_list())
