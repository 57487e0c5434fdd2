"""Tests of access to corpora by name."""

import pytest

from trainer.data import load_corpus
from trainer.data.load_corpus import open_corpus


def test_open_corpus_of_text_files(tmp_path):
    (tmp_path / "a.en").write_text("one\n")
    (tmp_path / "a.de").write_text("eins\n")
    corpus = open_corpus(
        "files", "train", source=str(tmp_path / "a.en"), target=str(tmp_path / "a.de")
    )
    assert list(corpus) == [("one", "eins")]


def test_open_corpus_of_tensorflow_datasets(monkeypatch):
    monkeypatch.setattr(load_corpus, "read_tfds", lambda *arguments: arguments)
    assert open_corpus("wmt14_translate/de-en", "train") == (
        "wmt14_translate/de-en",
        "train",
        "en-de",
        None,
    )
    arguments = "wmt14_translate/de-en", "dev", "de-en", "folder"
    assert (
        open_corpus("wmt14_translate/de-en", "dev", direction="de-en", data_dir="folder")
        == arguments
    )


def test_open_corpus_with_wrong_arguments_raises():
    with pytest.raises(
        ValueError, match="Expected source and target files. Received: only source files, a.en."
    ):
        open_corpus("files", "train", source="a.en")
    with pytest.raises(
        ValueError,
        match="Received: 'synthetic'. .*: python -m examples.synthetic_corpus FOLDER",
    ):
        open_corpus("synthetic", "dev")
