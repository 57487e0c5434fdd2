"""Where sentences come from."""

import gzip

import pytest

from examples.paper_tables.datasets import Sentences


def test_folder(folder, sentences):
    with gzip.open(folder / "train.en.gz", "wb") as file:
        file.write((folder / "train.en").read_bytes())
    (folder / "train.en").unlink()
    assert sentences.training_flags() == {
        "train_source": str(folder / "train.en.gz"),
        "train_target": str(folder / "train.de"),
        "dev_source": str(folder / "val.en"),
        "dev_target": str(folder / "val.de"),
    }
    assert sentences.evaluation_flags("test_b") == {
        "source": str(folder / "test_b.en"),
        "target": str(folder / "test_b.de"),
    }
    assert list(sentences.corpus("val")) == [
        ("val en 0 a b c d", "val de 0 a b c d"),
        ("val en 1 a b c d", "val de 1 a b c d"),
    ]
    assert sentences.splits == ("train", "val", "test_a", "test_b")


def test_other_direction(folder):
    sentences = Sentences(str(folder), direction="de-en", dev="val", tests=("test_a",))
    assert next(iter(sentences.corpus("test_a"))) == ("test_a de 0 a b c d", "test_a en 0 a b c d")


def test_named_sets():
    synthetic = Sentences("synthetic", tests=("test", "test_longer"))
    assert synthetic.training_flags() == {"data": "synthetic", "direction": "en-de"}
    assert synthetic.evaluation_flags("test_longer") == {
        "data": "synthetic",
        "direction": "en-de",
        "split": "test_longer",
    }
    assert len(list(synthetic.corpus("test_longer"))) > 0
    wmt = Sentences("wmt14_translate/fr-en", "/data", "en-fr")
    assert wmt.training_flags() == {
        "data": "wmt14_translate/fr-en",
        "direction": "en-fr",
        "data_dir": "/data",
    }


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {},
            "Expected .*/dev.en or dev.en.gz. Received: a folder with neither. Name its splits with --train, --dev and --test.",
        ),
        ({"dev": "val"}, "Expected .*/test.en or test.en.gz."),
        (
            {"dev": "val", "direction": "en"},
            "Expected a direction such as en-de. Received: 'en'. Correct --direction.",
        ),
        (
            {"dev": "val", "data_dir": "d"},
            "Expected --data_dir only with a set of TensorFlow Datasets. Received: d with the folder",
        ),
        (
            {"data": "synthetic", "dev": "val"},
            "Expected --train and --dev only with a folder of text files. Received: train and val",
        ),
    ],
)
def test_errors(folder, settings, message):
    with pytest.raises(ValueError, match=message):
        Sentences(**{"data": str(folder)} | settings)
