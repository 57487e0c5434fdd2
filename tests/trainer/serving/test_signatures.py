"""Tests the results of the signatures translate, score, tokenize, ids and detokenize."""

import numpy as np
import pytest
import tensorflow as tf

from trainer.model_dir import ModelDirectory
from trainer.serving.search import n_best
from trainer.serving.translator import ABSENT


def ask(loaded, signature, **arguments):
    answer = loaded.signatures[signature](
        **{name: tf.constant(value) for name, value in arguments.items()}
    )
    return {name: value.numpy() for name, value in answer.items()}


def translate(loaded, texts, **changed):
    defaults = {name: value.numpy() for name, value in loaded.defaults().items()}
    return ask(
        loaded,
        "translate",
        text=texts,
        **defaults
        | {name: np.array(value, defaults[name].dtype) for name, value in changed.items()},
    )


def test_score_equals_the_keras_model(loaded, sentences, tokenizer, trained_model_dir):
    targets = ["Der Hund rennt.", "", *sentences[2:]]
    answer = ask(loaded, "score", text=sentences, translation=targets)
    source, ids = (tokenizer.tokenize(texts).to_tensor().numpy() for texts in (sentences, targets))
    expected = (
        ModelDirectory.open(trained_model_dir)
        .load_model()
        .score(source, ids, return_alignments=True)
    )
    scores, alignments = expected
    np.testing.assert_allclose(answer["token_scores"], scores.token_scores, atol=1e-4)
    np.testing.assert_allclose(answer["scores"], scores.scores, atol=1e-3)
    real = ids != 0
    assert answer["lengths"].tolist() == real.sum(1).tolist()
    assert answer["source_lengths"].tolist() == (source != 0).sum(1).tolist()
    np.testing.assert_array_equal(answer["token_scores"][~real], 0.0)
    np.testing.assert_allclose(answer["alignments"].sum(-1), real, atol=1e-5)
    np.testing.assert_allclose(answer["alignments"][real], np.asarray(alignments)[real], atol=1e-5)
    assert not answer["truncated"].any()


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_score_equals_scores_of_translate(loaded, make_module, sentences, tokenizer, alpha):
    """The scores differ if the tokenizer splits a translation into other tokens than the search."""
    found = translate(loaded, sentences, alpha=alpha)
    texts = found["translations"][:, 0]
    source, split = (tokenizer.tokenize(strings) for strings in (sentences, texts))
    limits = tf.cast(source.row_lengths(), tf.int32) + 50
    transformer, options = make_module().transformer, {"beam_size": 4, "num_results": 1}
    searched = n_best(transformer, source.to_tensor(), limits, alpha=alpha, **options).ids[:, 0]
    searched = tf.RaggedTensor.from_tensor(searched, padding=0).to_list()
    same = np.array([ids == other for ids, other in zip(searched, split.to_list(), strict=True)])
    answer = ask(loaded, "score", text=sentences, translation=texts)
    scores = answer["scores"] / ((5 + answer["lengths"]) / 6) ** alpha
    assert same.any()
    np.testing.assert_allclose(scores[same], found["scores"][same, 0], atol=1e-3)
    assert not np.isclose(scores[~same], found["scores"][~same, 0], atol=1e-3).any()


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
    for row, (names, length) in enumerate(zip(tokens["tokens"].tolist(), tokens["lengths"])):
        assert names[length - 1 :] == [b"</s>"] + [b""] * (len(names) - length)
        assert (
            b"".join(names[: length - 1]).decode().replace("\u2581", " ").strip() == texts[row]
            or row == len(texts) - 1
        )
    assert [text.decode() for text in ask(loaded, "detokenize", ids=answer["ids"])["text"]][
        : len(sentences) + 1
    ] == texts[:-1]


def test_n_best_translations_are_sorted_and_start_with_the_best(loaded, sentences):
    found = translate(loaded, sentences, num_results=4)
    best = ask(loaded, "serving_default", text=sentences)
    assert (np.diff(found["scores"], axis=1) <= 0).all()
    # A search for several results may take more steps, but its best result is the same.
    assert found["translations"][:, 0].tolist() == best["translations"].tolist()
    np.testing.assert_allclose(found["scores"][:, 0], best["scores"], atol=1e-4)


def test_missing_translations_are_empty_and_have_the_score_absent(loaded):
    found = translate(loaded, ["the man sees the dog", ""], num_results=4, max_length=1)
    scores, texts = found["scores"], found["translations"]
    # With a maximum of one id, the only finished output is EOS by itself.
    filled = scores > ABSENT / 2
    assert filled.any(1).all() and not filled.all(1)[1]
    assert texts[~filled].tolist() == [b""] * int((~filled).sum())
    np.testing.assert_array_equal(scores[~filled], ABSENT)
    assert scores[1].tolist() == [0.0, ABSENT, ABSENT, ABSENT]


def test_score_of_an_empty_batch(loaded):
    answer = ask(loaded, "score", text=np.array([], object), translation=np.array([], object))
    assert {name: value.shape[0] for name, value in answer.items()} == dict.fromkeys(answer, 0)
    assert answer["alignments"].ndim == 3


@pytest.mark.parametrize("shape", [[], [1, 2], [2, 1]])
@pytest.mark.parametrize("signature", ["serving_default", "score", "tokenize", "ids"])
def test_text_of_a_wrong_rank_raises(loaded, signature, shape):
    arguments = {"text": tf.fill(shape, "the man")}
    if signature == "score":
        arguments["translation"] = arguments["text"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not compatible with expected"):
        loaded.signatures[signature](**arguments)
