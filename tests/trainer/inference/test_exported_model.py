"""Options of a request, and what the answer's tensors say."""

import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from trainer.inference import exported_model
from trainer.inference.exported_model import NBestTranslator, alignment
from trainer.serving.translator import Alignment, Translation


def answer(translations, scores, truncated=(False, True)):
    tensors = {
        "translations": tf.constant(translations),
        "scores": tf.constant(scores),
        "truncated": tf.constant(truncated),
    }
    return lambda text: tensors


def test_only_translation():
    call = NBestTranslator(answer([b"ein", b""], [-0.5, 0.0]))
    assert call([b"a", b""]) == [[Translation(b"ein", -0.5, False)], [Translation(b"", 0.0, True)]]


def test_places_that_are_left_empty_are_no_translations():
    call = NBestTranslator(
        answer([[b"ein", b"eins", b""], [b"", b"", b""]], [[-0.5, -1.5, -1e7], [0.0, -1e7, -1e7]])
    )
    assert call([b"a", b""]) == [
        [Translation(b"ein", -0.5, False), Translation(b"eins", -1.5, False)],
        [Translation(b"", 0.0, True)],
    ]


def test_alignments_belong_to_their_translations():
    asked = {}

    def score(text, translation):
        asked.update(text=text.numpy().tolist(), translation=translation.numpy().tolist())
        # Sources of 2, 2, 0 and 0 tokens; translations of 1, 3, 0 and 0; each after them has EOS.
        weights = np.zeros([4, 4, 3])
        weights[0, :2] = [[0.1, 0.3, 0.6], [0, 0, 1]]
        weights[1, :4] = [[0.6, 0.4, 0], [0.1, 0.2, 0.7], [0.2, 0.1, 0.7], [0, 0, 1]]
        return {
            "source_tokens": tf.constant([[b"a\0", b"b", b"</s>"]] * 2 + [[b"</s>", b"", b""]] * 2),
            "source_lengths": tf.constant([3, 3, 1, 1]),
            "tokens": tf.constant(
                [[b"x", b"</s>", b"", b""], [b"x", b"y", b"z", b"</s>"]]
                + [[b"</s>", b"", b"", b""]] * 2
            ),
            "lengths": tf.constant([2, 4, 1, 1]),
            "alignments": tf.constant(weights),
        }

    call = NBestTranslator(answer([[b"x", b"xyz"], [b"", b""]], [[-0.5, -1.5], [0.0, -1e7]]), score)
    first, second = call([b"a b\0", b""])
    assert asked == {
        "text": [b"a b\0", b"a b\0", b"", b""],
        "translation": [b"x", b"xyz", b"", b""],
    }
    assert first[0].alignment == Alignment([b"a\0", b"b"], [b"x"], [1])
    assert first[1].alignment == Alignment([b"a\0", b"b"], [b"x", b"y", b"z"], [0, 1, 0])
    assert [each.alignment for each in second] == [Alignment([], [], [])]


def test_nothing_to_align_with():
    assert alignment([b"</s>"], 1, [b"x", b"</s>"], 2, np.ones([2, 1])) == Alignment([], [b"x"], [])


def test_every_option_reaches_the_graph(exported_dir, loaded, sentences):
    options = {"beam_size": 3, "alpha": 1.5, "max_length": 7}
    lists = exported_model.load(exported_dir, **options, nbest=2)(sentences)
    expected = loaded.translate(text=tf.constant(sentences), num_results=2, **options)
    for best, texts, scores in zip(
        lists, expected["translations"].numpy(), expected["scores"].numpy(), strict=True
    ):
        # Where one translation only ends within 7 ids, the other place is empty.
        filled = scores > exported_model.ABSENT
        assert [each.text for each in best] == texts[filled].tolist()
        np.testing.assert_allclose([each.score for each in best], scores[filled], atol=1e-5)
        assert (np.diff(scores) < 0).all()


@pytest.mark.parametrize("name, value", [("beam_size", 1), ("alpha", 0.0), ("max_length", 3)])
@pytest.mark.slow
def test_options_left_out_are_the_exported_ones(name, value, exported_dir, loaded, sentences):
    (best,) = zip(*exported_model.load(exported_dir, **{name: value})(sentences))
    expected = loaded.translate(text=tf.constant(sentences), **(loaded.defaults() | {name: value}))
    assert [each.text for each in best] == expected["translations"].numpy()[:, 0].tolist()


def test_no_options_are_the_exported_ones(exported_dir, exported, sentences):
    assert exported_model.load(exported_dir)(sentences) == [[each] for each in exported(sentences)]


def test_options_beyond_what_was_exported(exported_dir):
    with pytest.raises(
        ValueError,
        match=(
            r"Expected --nbest to be at most the beam size, 4\. Received: 5\. Give a larger "
            r"--beam_size\."
        ),
    ):
        exported_model.load(exported_dir, nbest=5)
    with pytest.raises(
        ValueError, match=r"Expected --max_length to be at most 97, as exported\. Received: 98\."
    ):
        exported_model.load(exported_dir, max_length=98)


def test_what_the_graph_refuses_is_said_in_a_line(exported_dir):
    with pytest.raises(ValueError) as caught:
        exported_model.load(exported_dir, beam_size=1000)([b"a"])
    assert re.fullmatch(r"Expected beam_size from 1 to 32, .* Received: 1000\.", str(caught.value))


class Older(tf.Module):
    """A model exported before requests could choose."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def serve(self, text):
        return {
            "translations": text,
            "scores": tf.zeros(tf.shape(text)),
            "truncated": tf.zeros(tf.shape(text), tf.bool),
        }


def test_models_exported_earlier(tmp_path):
    module = Older()
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={"serving_default": module.serve})
    assert exported_model.load(tmp_path)([b"a"]) == [[Translation(b"a", 0.0, False)]]
    message = (
        "Expected a SavedModel whose signature {} takes {}. Received: .*/1, which was exported "
        "before there was such a thing. Export"
    )
    with pytest.raises(ValueError, match=message.format("translate", "beam_size, num_results")):
        exported_model.load(tmp_path, beam_size=2, nbest=2)
    with pytest.raises(ValueError, match=message.format("score", "translation")):
        exported_model.load(tmp_path, aligned=True)


def test_fingerprint_tells_models_apart_wherever_they_lie(exported_dir, tmp_path):
    shutil.copytree(exported_dir / "1", tmp_path / "copy")
    module = Older()
    tf.saved_model.save(module, str(tmp_path / "2"), signatures={"serving_default": module.serve})
    prints = [
        exported_model.load(path).fingerprint
        for path in (exported_dir, tmp_path / "copy", tmp_path / "2")
    ]
    assert prints[0] == prints[1] != prints[2]
    (tmp_path / "copy/fingerprint.pb").unlink()
    assert exported_model.load(tmp_path / "copy").fingerprint == str(tmp_path / "copy")
