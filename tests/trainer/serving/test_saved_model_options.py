"""Tests of the options of `saved_models.load`, and of a model's fingerprint."""

import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from trainer.serving import saved_models
from trainer.serving.translator import ABSENT


def test_load_passes_options_to_the_graph(exported_dir, loaded, sentences):
    options = {"beam_size": 3, "alpha": 1.5, "max_length": 7}
    lists = saved_models.load(exported_dir, **options, nbest=2).n_best(sentences)
    expected = loaded.translate(text=tf.constant(sentences), num_results=2, **options)
    for best, texts, scores in zip(
        lists, expected["translations"].numpy(), expected["scores"].numpy(), strict=True
    ):
        # If only one translation ends within 7 ids, the second one is missing.
        filled = scores > ABSENT
        assert [each.text for each in best] == texts[filled].tolist()
        np.testing.assert_allclose([each.score for each in best], scores[filled], atol=1e-5)
        assert (np.diff(scores) < 0).all()


@pytest.mark.parametrize(
    "name, value", [("beam_size", 1), ("alpha", 0.0), ("alpha", 2.0), ("max_length", 3)]
)
def test_omitted_options_default_to_the_exported_ones(name, value, exported_dir, loaded, sentences):
    (best,) = zip(*saved_models.load(exported_dir, **{name: value}).n_best(sentences))
    expected = loaded.translate(text=tf.constant(sentences), **(loaded.defaults() | {name: value}))
    assert [each.text for each in best] == expected["translations"].numpy()[:, 0].tolist()
    scores = [each.score for each in best]
    np.testing.assert_allclose(scores, expected["scores"][:, 0], atol=1e-4)


def test_n_best_without_options_equals_serving_default(exported, loaded, sentences):
    answer = loaded.signatures["serving_default"](text=tf.constant(sentences))
    names = "translations", "scores", "truncated"
    expected = zip(*(answer[name].numpy().tolist() for name in names), strict=True)
    lists = exported.n_best(sentences)
    assert [[each[:3] for each in best] for best in lists] == [[each] for each in expected]


def test_errors_of_the_graph_are_single_lines(exported_dir):
    with pytest.raises(ValueError) as caught:
        saved_models.load(exported_dir, beam_size=1000).n_best([b"a"])
    assert re.fullmatch(r"Expected beam_size from 1 to 32, .* Received: 1000\.", str(caught.value))


def test_fingerprint_depends_on_the_model_and_not_on_its_path(exported_dir, tmp_path):
    shutil.copytree(exported_dir / "1", tmp_path / "copy")
    tf.saved_model.save(tf.Module(), str(tmp_path / "2"))
    paths = exported_dir, tmp_path / "copy", tmp_path / "2"
    prints = [saved_models.fingerprint(path) for path in paths]
    assert prints[0] == prints[1] != prints[2]
    (tmp_path / "copy/fingerprint.pb").unlink()
    assert saved_models.fingerprint(tmp_path / "copy") == str(tmp_path / "copy")
