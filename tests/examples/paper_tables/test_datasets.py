"""Tests of datasets in folders and of named datasets."""

import gzip

import pytest

from examples.paper_tables.datasets import Dataset

pytestmark = pytest.mark.slow


def test_dataset_reads_a_folder(folder, dataset):
    with gzip.open(folder / "train.en.gz", "wb") as file:
        file.write((folder / "train.en").read_bytes())
    (folder / "train.en").unlink()
    assert dataset.training_flags() == {
        "train_source": str(folder / "train.en.gz"),
        "train_target": str(folder / "train.de"),
        "dev_source": str(folder / "val.en"),
        "dev_target": str(folder / "val.de"),
    }
    assert dataset.evaluation_flags("test_b") == {
        "source": str(folder / "test_b.en"),
        "target": str(folder / "test_b.de"),
    }
    assert list(dataset.open_corpus("val")) == [
        ("val en 0 a b c d", "val de 0 a b c d"),
        ("val en 1 a b c d", "val de 1 a b c d"),
    ]
    assert dataset.eval_splits == ("val", "test_a", "test_b")


def test_dataset_swaps_source_and_target_by_direction(folder):
    dataset = Dataset(str(folder), direction="de-en", dev="val", tests=("test_a",))
    first = next(iter(dataset.open_corpus("test_a")))
    assert first == ("test_a de 0 a b c d", "test_a en 0 a b c d")


def test_dataset_flags_of_named_datasets():
    wmt = Dataset("wmt14_translate/fr-en", "/data", "en-fr")
    expected = {"data": "wmt14_translate/fr-en", "direction": "en-fr", "data_dir": "/data"}
    assert wmt.training_flags() == expected
    assert wmt.evaluation_flags("test") == wmt.training_flags() | {"split": "test"}


@pytest.mark.parametrize(
    "settings, message",
    [
        ({}, "Neither .*/dev.en nor dev.en.gz exists. Select the splits with --train, --dev"),
        ({"dev": "val"}, "Neither .*/test.en nor test.en.gz exists."),
        ({"dev": "val", "direction": "en"}, "--direction must look like en-de, got 'en'."),
    ],
)
def test_dataset_rejects_invalid_settings(folder, settings, message):
    with pytest.raises(ValueError, match=message):
        Dataset(**{"data": str(folder)} | settings)
