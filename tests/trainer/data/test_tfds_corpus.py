"""Tests of translation sets of TensorFlow Datasets, with a small set and a fake WMT 2014.

TensorFlow Datasets takes seconds to import, so only fixtures import it.
"""

import sys

import pytest

from trainer import errors
from trainer.config import RunConfig
from trainer.data.corpus import MissingSplitError, read_tfds
from trainer.model_dir import ModelDirectory
from trainer.training import preparation

PAIRS = [
    ("A dog runs.", "Ein Hund läuft."),
    ("", "Leer?"),
    ("She sleeps\u2028well.", "Sie schläft gut."),
    ("It's 5 o'clock.", "Es ist fünf Uhr."),
]


@pytest.fixture(scope="module")
def tiny_translate():
    """Returns a translation set that needs no download, `tiny_translate`.

    The set `train_only_translate` has no validation split.
    """
    import tensorflow_datasets as tfds

    class TinyTranslate(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        SPLITS = {"train": range(3), "validation": range(1, 4)}

        def _info(self):
            features = tfds.features.Translation(("de", "en"))
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, download_manager):
            return {split: self._generate_examples(rows) for split, rows in self.SPLITS.items()}

        def _generate_examples(self, rows):
            for i in rows:
                yield i, dict(zip(("en", "de"), PAIRS[i]))

    class TrainOnlyTranslate(TinyTranslate):
        SPLITS = {"train": range(4)}

    return TinyTranslate


@pytest.fixture(scope="module")
def tfds_dir(tiny_translate, tmp_path_factory):
    return str(tmp_path_factory.mktemp("tensorflow_datasets"))


def test_read_tfds_in_both_directions(tfds_dir):
    corpus = read_tfds("tiny_translate", "dev", "en-de", data_dir=tfds_dir)
    reverse = read_tfds("tiny_translate", "dev", "de-en", data_dir=tfds_dir)
    assert sorted(corpus) == sorted(PAIRS[1:])
    assert list(corpus) == list(corpus)
    assert list(reverse) == [(target, source) for source, target in corpus]
    assert len(list(read_tfds("tiny_translate", "train", "en-de", data_dir=tfds_dir))) == 3
    assert corpus.fingerprint != reverse.fingerprint


def test_fingerprint_depends_on_the_prepared_text(tiny_translate, tfds_dir, tmp_path, monkeypatch):
    read = lambda folder: read_tfds("tiny_translate", "dev", "en-de", str(folder))
    expected = read(tfds_dir).fingerprint
    assert read(tmp_path / "copy").fingerprint == expected
    pair = "one\rtwo", "eins\r\nzwei"
    monkeypatch.setitem(globals(), "PAIRS", [PAIRS[0], pair, *PAIRS[2:]])
    changed = read(tmp_path / "changed")
    assert changed.fingerprint != expected
    assert ("one two", "eins  zwei") in list(changed), "line ends are spaces"


def test_wmt14_splits_are_newstest2013_and_newstest2014(wmt14):
    read = lambda split: read_tfds("wmt14_translate/de-en", split, data_dir=wmt14.data_dir)
    dev, test, train = map(read, ("dev", "test", "train"))
    assert sorted(dev) == sorted(wmt14.pairs("newstest2013"))
    assert sorted(test) == sorted(wmt14.pairs("newstest2014"))
    # The training data consists of three corpora, which are equal here.
    assert sorted(train) == sorted(3 * wmt14.pairs("train"))
    assert list(train) == list(train)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            "wmt14_tranlsate/de-en train en-de",
            "the name of a translation set .* Received: '{}'.",
            marks=pytest.mark.slow,  # TensorFlow Datasets imports all its sets.
        ),
        ("wmt14_translate/de-eo train en-de", "the name of a translation set .* Received: '{}'."),
        ("wmt14_translate/de-en train en-fr", "a direction .* {}: de, en. Received: 'en-fr'."),
        ("tiny_translate train en", "a direction between .* Received: 'en'."),
        ("mnist train en-de", "a direction between .* of mnist: it has none. Received: 'en-de'."),
        ("tiny_translate trian en-de", "a split of {}: train, validation. Received: 'trian'."),
    ],
)
def test_read_tfds_with_wrong_arguments_raises(tfds_dir, arguments, message):
    name, split, direction = arguments.split()
    with pytest.raises(ValueError, match=f"Expected {message.format(name)}"):
        read_tfds(name, split, direction, data_dir=tfds_dir)


def test_read_tfds_without_a_connection_raises(tiny_translate, tmp_path, monkeypatch):
    def download_and_prepare(builder):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(tiny_translate, "download_and_prepare", download_and_prepare)
    message = "Expected tiny_translate in .*, or to download it. Received: no route to host. Copy a"
    with pytest.raises(ValueError, match=message):
        read_tfds("tiny_translate", "train", "en-de", data_dir=str(tmp_path))


def test_training_without_a_validation_split_warns(tfds_dir, tmp_path, caplog):
    message = "Expected a split of train_only_translate: train."
    with pytest.raises(MissingSplitError, match=f"{message} Received: 'validation'.$"):
        read_tfds("train_only_translate", "dev", "en-de", data_dir=tfds_dir)
    directory = ModelDirectory.create(tmp_path / "run")
    settings = {"data": "train_only_translate", "data_dir": tfds_dir, "vocab_size": 40}
    config = RunConfig(preset="tiny", model_dir=str(directory.path), **settings)
    prepared = preparation.prepare(config, directory)
    assert (len(prepared.train_pairs), prepared.dev_pairs) == (4, None)
    assert f"Training without a dev set. {message}" in caplog.text


def test_without_tensorflow_datasets_the_error_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(SystemExit) as stopped:
        with errors.errors_as_exit_codes("trainer.train"):
            read_tfds("wmt14_translate/de-en", "train")
    assert stopped.value.code == 2
    assert capsys.readouterr().err == (
        "trainer.train: Expected the package tensorflow_datasets. Received: an environment "
        "without it. Install it: pip install 't2t-relpos[trainer]'.\n"
    )
