"""Tests of the translations, scores and tokens of an exported model."""

import re

import numpy as np
import pytest
import tensorflow as tf

from t2t_relpos.decoding import beam_search
from trainer.data.tokenizer import EOS_ID, PAD_ID, Tokenizers
from trainer.model_dir import ModelDirectory
from trainer.serving.translation_module import TranslationModule
from trainer.serving.translator import NO_OUTPUT_SCORE

HOSTILE = [
    b"The dog \xff\xfe runs \x80.",
    b"",
    b" \t ",
    b"house " * 10_000,
    b"On Sunday the woman arrives.",
    b"\x00\x01\x02",
    b"\xed\xa0\x80\xc0\xaf",
    "犬が走る 🎉 собака".encode(),
    b"house" * 5_000,
    b"line\nbreak\r\nand\x0bmore",
    "\u2581\u200b\ufeff\u202e".encode(),
    b"\n",
]
BLANK, LONG = {1, 2, 11}, {3, 8}


def ask(loaded, signature, **arguments):
    arguments = {name: tf.constant(value) for name, value in arguments.items()}
    answer = loaded.signatures[signature](**arguments)
    return {name: value.numpy() for name, value in answer.items()}


def translate(loaded, texts, **changed):
    defaults = {name: value.numpy() for name, value in loaded.defaults().items()}
    return ask(loaded, "translate", text=texts, **defaults | changed)


def search(make_module, sentences, alpha=0.6, *, beam_size, max_length):
    """Returns the ids `[B, T]` of the translations by the search, and their maximum lengths."""
    module = make_module()
    source = module.tokenizers.source.tokenize(sentences)
    limits = tf.minimum(tf.cast(source.row_lengths(), tf.int32) + 50, max_length)
    longest = tf.reduce_max(limits)
    state, step = module.transformer.start_search(source.to_tensor(), longest, beam_size)
    options = {"batch_size": len(sentences), "max_length": longest, "length_limit": limits}
    options |= {"beam_size": beam_size, "alpha": alpha, "eos_id": EOS_ID, "pad_id": PAD_ID}
    return beam_search(step, state, **options).ids[:, 0].numpy(), limits.numpy()


def assert_same(answers, expected):
    assert [answer.text for answer in answers] == [answer.text for answer in expected]
    assert [answer.truncated for answer in answers] == [answer.truncated for answer in expected]
    np.testing.assert_allclose([a.score for a in answers], [e.score for e in expected], atol=1e-4)


def test_translations_do_not_depend_on_the_batch(exported, sentences):
    texts = [*HOSTILE, *sentences[:3]]
    together = exported(texts)
    assert_same([exported([text])[0] for text in texts], together)
    assert_same(exported(texts[::-1])[::-1], together)
    replaced = [text.decode("utf-8", "replace") for text in (HOSTILE[0], HOSTILE[6])]
    assert_same(exported(replaced), [together[0], together[6]])
    for row, answer in enumerate(together):
        answer.text.decode("utf-8")
        assert np.isfinite(answer.score)
        if row in BLANK:
            assert answer[:3] == (b"", 0.0, False)
        elif row not in (6, 10):
            assert answer.score < 0.0
    assert {row for row, answer in enumerate(together) if answer.truncated} == LONG


def test_long_text_is_truncated_at_the_end(exported, loaded):
    ids = ask(loaded, "ids", text=["house " * 47])["ids"][:, :46]
    (text,) = ask(loaded, "detokenize", ids=ids)["text"]
    assert ask(loaded, "ids", text=[text])["lengths"] == [47]
    whole, cut = exported([text, text + b" the man"])
    assert (whole.truncated, cut.truncated) == (False, True)
    assert (cut.text, cut.score) == (whole.text, pytest.approx(whole.score, abs=1e-5))


def test_empty_batches(exported, loaded):
    assert exported([]) == []
    answer = loaded.signatures["serving_default"](text=tf.zeros([0], tf.string))
    assert {name: (value.shape.as_list(), value.dtype) for name, value in answer.items()} == {
        "translations": ([0], tf.string),
        "scores": ([0], tf.float32),
        "truncated": ([0], tf.bool),
        "complete": ([0], tf.bool),
    }
    answer = ask(loaded, "score", text=np.array([], object), translation=np.array([], object))
    assert {name: value.shape[0] for name, value in answer.items()} == dict.fromkeys(answer, 0)
    assert answer["alignments"].ndim == 3


def test_translate_with_defaults_equals_serving_default(exported, loaded, sentences):
    assert {name: value.numpy() for name, value in loaded.defaults().items()} == {
        "beam_size": 4,
        "alpha": np.float32(0.6),
        "max_length": 47 + 50,
        "num_results": 1,
    }
    served = exported(sentences)
    for num_results in (1, 4):
        found = translate(loaded, sentences, num_results=num_results)
        # A search for several results may take more steps, but its best result is the same.
        assert found["translations"][:, 0].tolist() == [answer.text for answer in served]
        scores = [answer.score for answer in served]
        np.testing.assert_allclose(found["scores"][:, 0], scores, atol=1e-4)
        assert (np.diff(found["scores"], axis=1) <= 0).all()
        assert found["truncated"].tolist() == [answer.truncated for answer in served]


def test_truncated_translations_fill_up_and_a_blank_sentence_has_one(loaded):
    found = translate(loaded, ["the man sees the dog", ""], num_results=4, max_length=1)
    # With a maximum of one id, the only finished output is EOS by itself.
    assert (found["scores"][0] > NO_OUTPUT_SCORE / 2).all()
    assert found["scores"][1].tolist() == [0.0, NO_OUTPUT_SCORE, NO_OUTPUT_SCORE, NO_OUTPUT_SCORE]
    assert found["translations"][1].tolist() == [b""] * 4
    assert found["complete"].tolist() == [[False] * 4, [True, False, False, False]]


@pytest.mark.parametrize(("beam_size", "max_length"), [(1, 1), (4, 97)])
def test_translations_that_end_within_the_maximum_length_are_complete(
    beam_size, max_length, loaded, make_module, sentences
):
    # Which translations end is the model's choice, and processors train different models. The
    # expected values are therefore those of the ids that the search returns.
    options = {"beam_size": beam_size, "max_length": max_length}
    ids, limits = search(make_module, sentences, **options)
    complete, lengths = (ids == 1).any(1), (ids != 0).sum(1)
    np.testing.assert_array_equal(lengths[~complete], limits[~complete])
    found = translate(loaded, sentences, **options)["complete"]
    np.testing.assert_array_equal(found, complete[:, None])
    assert complete.any() if max_length > 1 else not complete.all()


def test_score_equals_the_keras_model(loaded, sentences, tokenizer, trained_model_dir):
    targets = ["Der Hund rennt.", "", *sentences[2:]]
    answer = ask(loaded, "score", text=sentences, translation=targets)
    source, ids = (tokenizer.tokenize(texts).to_tensor().numpy() for texts in (sentences, targets))
    model = ModelDirectory.open(trained_model_dir).load_model()
    scores, alignments = model.score(source, ids, return_alignments=True)
    np.testing.assert_allclose(answer["token_scores"], scores.token_scores, atol=1e-4)
    np.testing.assert_allclose(answer["scores"], scores.scores, atol=1e-3)
    real = ids != 0
    assert answer["lengths"].tolist() == real.sum(1).tolist()
    assert answer["source_lengths"].tolist() == (source != 0).sum(1).tolist()
    np.testing.assert_array_equal(answer["token_scores"][~real], 0.0)
    np.testing.assert_allclose(answer["alignments"].sum(-1), real, atol=1e-5)
    np.testing.assert_allclose(answer["alignments"][real], np.asarray(alignments)[real], atol=1e-5)
    assert not answer["truncated"].any()
    # A Keras model has the same method as its folded copy.
    module = TranslationModule(model, Tokenizers.shared(tokenizer))
    unfolded = module.score.python_function(tf.constant(sentences), tf.constant(targets))
    for name in ("token_scores", "alignments"):
        np.testing.assert_allclose(unfolded[name], answer[name], atol=1e-4)


def test_score_truncates_long_texts(loaded):
    answer = ask(
        loaded,
        "score",
        text=["the man", "house " * 300, "the man"],
        translation=["ja", "ja", "haus " * 900],
    )
    assert answer["truncated"].tolist() == [False, True, True]
    assert answer["source_lengths"].max() == 47 and answer["lengths"].max() == 47 + 50
    assert np.isfinite(answer["scores"]).all()


def test_tokenize_ids_and_detokenize_equal_the_tokenizer(loaded, sentences, tokenizer):
    texts = [*sentences, "", "犬 🎉"]
    ids = tokenizer.tokenize(texts)
    answer = ask(loaded, "ids", text=texts)
    np.testing.assert_array_equal(answer["ids"], ids.to_tensor())
    assert answer["lengths"].tolist() == ids.row_lengths().numpy().tolist()
    tokens = ask(loaded, "tokenize", text=texts)
    assert tokens["lengths"].tolist() == answer["lengths"].tolist()
    found = ask(loaded, "detokenize", ids=answer["ids"])["text"]
    # The vocabulary has no names of the characters of the last text.
    rows = zip(texts[:-1], tokens["tokens"].tolist(), tokens["lengths"], found)
    for text, names, length, detokenized in rows:
        assert names[length - 1 :] == [b"</s>"] + [b""] * (len(names) - length)
        joined = b"".join(names[: length - 1]).decode()
        assert joined.replace("\u2581", " ").strip() == detokenized.decode() == text


@pytest.mark.parametrize(
    ("signature", "shape"),
    [("serving_default", [1, 2]), ("score", []), ("tokenize", [2, 1]), ("ids", [])],
)
def test_text_of_a_wrong_rank_raises(loaded, signature, shape):
    arguments = {"text": tf.fill(shape, "the man")}
    if signature == "score":
        arguments["translation"] = arguments["text"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not compatible with expected"):
        loaded.signatures[signature](**arguments)


@pytest.mark.parametrize("wrong", [-1, 10**6])
def test_detokenize_rejects_ids_outside_the_vocabulary(wrong, loaded, tokenizer):
    received = f"ids from {min(wrong, 5)} to {max(wrong, 5)}"
    message = f"Expected ids from 0 to {tokenizer.vocab_size - 1}. Received: {received}."
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        loaded.signatures["detokenize"](ids=tf.constant([[5, wrong, 5]]))
    empty = loaded.signatures["detokenize"](ids=tf.zeros([2, 0], tf.int32))
    assert empty["text"].numpy().tolist() == [b"", b""]
