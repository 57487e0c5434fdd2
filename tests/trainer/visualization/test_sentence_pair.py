import pytest
import tensorflow as tf

from trainer.model_dir import ModelDirectory
from trainer.visualization.sentence_pair import LONGEST, sentence_pair, translation_ids


@pytest.fixture(scope="module")
def model(trained_model_dir):
    return ModelDirectory.open(trained_model_dir).load_model()


@pytest.fixture
def tokenizer(trained_model_dir):
    return ModelDirectory.open(trained_model_dir).load_tokenizer()


@pytest.mark.slow
def test_own_translation_is_what_is_served(model, tokenizer, make_module, sentences):
    module = make_module()
    for sentence in sentences[:3]:
        pair = sentence_pair(model, tokenizer, sentence)
        assert (
            pair.target == module.serve(tf.constant([sentence]))["translations"].numpy()[0].decode()
        )
        assert pair.source == sentence and not pair.is_given
        assert pair.source_ids == tokenizer.tokenize([sentence])[0].numpy().tolist()
        assert pair.target_ids[-1] == 1 and 0 not in pair.target_ids
        assert tokenizer.detokenize([pair.target_ids]).numpy()[0].decode() == pair.target


def test_given_translation(model, tokenizer):
    pair = sentence_pair(model, tokenizer, "The dog sleeps .", "Der Hund schläft .")
    assert pair.is_given and pair.target == "Der Hund schläft ."
    assert pair.target_ids == tokenizer.tokenize(["Der Hund schläft ."])[0].numpy().tolist()


class Endless:
    """Says 3 for ever."""

    def encode(self, source, max_length):
        return {"none": tf.zeros([tf.shape(source)[0], 1])}

    def step(self, ids, state):
        # So many words that no beam has room for EOS.
        return tf.tile([[0.0, -99.0, 0.0, 9.0, *[0.0] * 20]], [tf.size(ids), 1]), state


def test_translation_that_does_not_end_is_cut():
    assert translation_ids(Endless(), [5, 7, 1], limit=19) == [3] * 19
    assert translation_ids(Endless(), [5, 7, 1], limit=99) == [3] * 53


@pytest.mark.parametrize("text", ["", "  ", "\t\n"])
def test_no_words(model, tokenizer, text):
    with pytest.raises(
        ValueError,
        match="Expected a sentence with --source. Received: .*, which has no words. Give one.",
    ):
        sentence_pair(model, tokenizer, text)
    with pytest.raises(
        ValueError,
        match="with --target. Received: .*, which has no words. Give one, or leave it out for the model's",
    ):
        sentence_pair(model, tokenizer, "The dog", text)


def test_too_long(model, tokenizer):
    text = "the dog " * LONGEST
    with pytest.raises(
        ValueError,
        match=f"Expected a sentence of at most {LONGEST} ids with --source. Received: one of .*a part of it.",
    ):
        sentence_pair(model, tokenizer, text)
    with pytest.raises(
        ValueError, match=f"Expected a sentence of at most {LONGEST} ids with --target."
    ):
        sentence_pair(model, tokenizer, "The dog", text)


def test_no_more_than_learned_positions(make_transformer, tokenizer):
    transformer = make_transformer("learned")
    with pytest.raises(ValueError, match="Expected a sentence of at most 19 ids with --source."):
        sentence_pair(transformer, tokenizer, "the dog " * 20)


def test_text_that_is_no_utf8(model, tokenizer):
    with pytest.raises(ValueError, match=r"Expected --source in UTF-8. Received: 'dog\\udcff'."):
        sentence_pair(model, tokenizer, b"dog\xff".decode(errors="surrogateescape"))
