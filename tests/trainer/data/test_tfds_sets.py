"""Tests of translation sets of TensorFlow Datasets, with a small set and a fake WMT 2014."""

import pytest
import tensorflow_datasets as tfds

from trainer.config import RunConfig
from trainer.data.tfds_sets import MissingSplitError, read_tfds
from trainer.model_dir import ModelDirectory
from trainer.training.preparation import Preparation

ENGLISH = ["A dog runs.", "", "She sleeps\u2028well.", "It's 5 o'clock."]
GERMAN = ["Ein Hund läuft.", "Leer?", "Sie schläft gut.", "Es ist fünf Uhr."]


class TinyTranslate(tfds.core.GeneratorBasedBuilder):
    """A translation set that needs no download."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.Translation(("de", "en")))

    def _split_generators(self, download_manager):
        return {"train": self._generate_examples(0, 3), "validation": self._generate_examples(1, 4)}

    def _generate_examples(self, start, stop):
        for i in range(start, stop):
            yield i, {"en": ENGLISH[i], "de": GERMAN[i]}


class TrainOnlyTranslate(TinyTranslate):
    """A translation set without a validation split."""

    def _split_generators(self, download_manager):
        return {"train": self._generate_examples(0, 4)}


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory):
    return str(tmp_path_factory.mktemp("tensorflow_datasets"))


def test_read_tfds_in_both_directions(tfds_dir):
    corpus = read_tfds("tiny_translate", "dev", "en-de", data_dir=tfds_dir)
    reverse = read_tfds("tiny_translate", "dev", "de-en", data_dir=tfds_dir)
    assert sorted(corpus) == sorted(zip(ENGLISH[1:], GERMAN[1:]))
    assert list(corpus) == list(corpus)
    assert list(reverse) == [(target, source) for source, target in corpus]
    assert len(list(read_tfds("tiny_translate", "train", "en-de", data_dir=tfds_dir))) == 3
    assert corpus.fingerprint != reverse.fingerprint


def test_wmt14_splits_are_newstest2013_and_newstest2014(wmt14):
    dev, test, train = (
        read_tfds("wmt14_translate/de-en", split, data_dir=wmt14.data_dir)
        for split in ("dev", "test", "train")
    )
    assert sorted(dev) == sorted(wmt14.pairs("newstest2013"))
    assert sorted(test) == sorted(wmt14.pairs("newstest2014"))
    # The training data consists of three corpora, which are equal here.
    assert sorted(train) == sorted(3 * wmt14.pairs("train"))
    assert list(train) == list(train)


def test_wmt14_french_training_data_has_five_corpora(wmt14):
    train = read_tfds("wmt14_translate/fr-en", "train", direction="en-fr", data_dir=wmt14.data_dir)
    assert sorted(train) == sorted(5 * wmt14.pairs("train"))


def test_read_tfds_with_wrong_arguments_raises(tfds_dir):
    with pytest.raises(
        ValueError,
        match="Expected the name of a translation set .* Received: 'wmt14_tranlsate/de-en'.",
    ):
        read_tfds("wmt14_tranlsate/de-en", "train", "en-de", data_dir=tfds_dir)
    with pytest.raises(
        ValueError,
        match="Expected the name of a translation set .* Received: 'wmt14_translate/de-eo'.",
    ):
        read_tfds("wmt14_translate/de-eo", "train", "en-de", data_dir=tfds_dir)
    with pytest.raises(
        ValueError,
        match="Expected a direction between .* wmt14_translate/de-en: de, en. Received: 'en-fr'.",
    ):
        read_tfds("wmt14_translate/de-en", "train", "en-fr", data_dir=tfds_dir)
    with pytest.raises(ValueError, match="Expected a direction between .* Received: 'en'."):
        read_tfds("tiny_translate", "train", "en", data_dir=tfds_dir)
    with pytest.raises(
        ValueError,
        match="Expected a direction between .* of mnist: it has none. Received: 'en-de'.",
    ):
        read_tfds("mnist", "train", "en-de", data_dir=tfds_dir)
    with pytest.raises(
        ValueError,
        match="Expected a split of tiny_translate: train, validation. Received: 'trian'.",
    ):
        read_tfds("tiny_translate", "trian", "en-de", data_dir=tfds_dir)


def test_read_tfds_without_a_connection_raises(tmp_path, monkeypatch):
    def download_and_prepare(builder):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(TinyTranslate, "download_and_prepare", download_and_prepare)
    message = "Expected tiny_translate in .*, or to download it. Received: no route to host. Copy a"
    with pytest.raises(ValueError, match=message):
        read_tfds("tiny_translate", "train", "en-de", data_dir=str(tmp_path))


def test_training_without_a_validation_split_warns(tfds_dir, tmp_path, caplog):
    with pytest.raises(
        MissingSplitError,
        match="Expected a split of train_only_translate: train. Received: 'validation'.$",
    ):
        read_tfds("train_only_translate", "dev", "en-de", data_dir=tfds_dir)
    settings = {
        "preset": "tiny",
        "data": "train_only_translate",
        "data_dir": tfds_dir,
        "vocab_size": 40,
    }
    directory = ModelDirectory.create(tmp_path / "run")
    prepared = Preparation(RunConfig(model_dir=str(directory.path), **settings), directory)
    assert (len(prepared.train_pairs), prepared.dev_pairs) == (4, None)
    assert (
        "Training without a dev set. Expected a split of train_only_translate: train."
        in caplog.text
    )
