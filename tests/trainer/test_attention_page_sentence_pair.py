"""Tests of token ids of given and generated translations, and of errors."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from t2t_relpos.models import TransformerConfig
from t2t_relpos.models.generation import GenerationMixin, SearchFunctions
from trainer.attention_page import make_sentence_pair, translate_ids
from trainer.data.tokenizer import Tokenizers
from trainer.model_dir import ModelDirectory


@pytest.mark.slow
def test_generated_translation_equals_served_translation(
    trained_model_dir, tokenizer, make_module, sentences
):
    model, module = ModelDirectory.open(trained_model_dir).load_model(), make_module()
    for sentence in sentences[:3]:
        pair = make_sentence_pair(model, Tokenizers.shared(tokenizer), sentence)
        served = module.serve(tf.constant([sentence]))["translations"].numpy()[0].decode()
        assert pair.target == served
        assert pair.source == sentence and not pair.is_given
        assert pair.source_ids == tokenizer.tokenize([sentence])[0].numpy().tolist()
        assert pair.target_ids[-1] == 1 and 0 not in pair.target_ids
        assert tokenizer.detokenize([pair.target_ids]).numpy()[0].decode() == pair.target


class EndlessModel(GenerationMixin):
    """A model that predicts id 3 at every step."""

    vocab_size = 24
    config = TransformerConfig(vocab_size=24)
    variables = ()

    def __init__(self):
        self._searches = SearchFunctions()

    def encode(self, source, max_length):
        return {"none": tf.zeros([tf.shape(source)[0], 1])}

    def step(self, ids, state):
        # There are enough other ids to keep EOS out of the beam.
        return tf.tile([[0.0, -99.0, 0.0, 9.0, *[0.0] * 20]], [tf.size(ids), 1]), state


def test_endless_translation_is_truncated(eager_searches):
    assert translate_ids(EndlessModel(), [5, 7, 1], limit=19) == [3] * 19
    assert translate_ids(EndlessModel(), [5, 7, 1], limit=99) == [3] * 53


LEARNED = {"position": "learned", "max_length": 19}


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (" \t\n", {}, r"must be a sentence, got ' \\t\\n'"),
        ("the dog " * 128, {"max_length": 19}, "must have at most 128 token ids, got "),
        ("the dog " * 19, LEARNED, "must have at most 19 token ids, got "),
        ("dog\udcff", {}, r"must be valid UTF-8, got 'dog\\udcff'"),
    ],
)
def test_unsuitable_sentence_raises(finish, text, settings, message):
    model = SimpleNamespace(config=TransformerConfig(vocab_size=40, **settings))
    tokenizers = finish("pair").directory.load_tokenizers()
    with pytest.raises(ValueError, match=f"--source {message}"):
        make_sentence_pair(model, tokenizers, text)
    with pytest.raises(ValueError, match=f"--target {message}"):
        make_sentence_pair(model, tokenizers, "The dog", text)
