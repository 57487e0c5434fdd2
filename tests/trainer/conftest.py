"""Fixtures: a tiny trained model, small training runs, and a fake WMT 2014."""

import errno
import fcntl
import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
import train_small

from examples.synthetic_corpus import generate
from examples.synthetic_corpus.__main__ import write_split
from t2t_relpos.models import Transformer, TransformerConfig
from trainer import train
from trainer.config import RunConfig
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.export import export
from trainer.model_dir import ModelDirectory
from trainer.serving import saved_models
from trainer.serving.translation_module import TranslationModule, TranslationSettings

MAX_INPUT_LENGTH = 47


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """Returns `made_once(name, make)`: a directory that all processes of the test run share.

    The first process that calls it creates the directory with `make(path)`.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    def path_of(name, make):
        with open(shared / f"{name}.lock", "a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.seek(0)
            if not lock.read():
                make(shared / name)
                lock.write("made")
        return shared / name

    return path_of


@pytest.fixture(scope="session")
def synthetic_files(made_once):
    """Returns flags of `trainer.train` for text files with a part of the synthetic corpus."""

    def make(folder):
        folder.mkdir()
        write_split(folder, "train", size=3001)
        write_split(folder, "dev")

    folder = made_once("synthetic_corpus", make)
    sides = ("source", "en"), ("target", "de")
    splits = "train", "dev"
    files = [f"--{split}_{side}={folder}/{split}.{x}" for split in splits for side, x in sides]
    return ["--vocab_size=1000", *files]


@pytest.fixture(scope="session")
def trained_model_dir(made_once):
    """Returns the path of a model directory. Its model is trained enough to end sentences."""
    return made_once("tiny", _make_model_dir)


def _make_model_dir(path):
    keras.utils.set_random_seed(20180402)
    pairs = generate("train", size=397)
    directory = ModelDirectory.create(path)
    tokenizer = SentencePieceTokenizer.train(
        [text for pair in pairs for text in pair], vocab_size=211
    )
    tokenizer.save(directory.vocabulary_file())
    config = TransformerConfig(
        vocab_size=211,
        num_encoder_layers=1,
        num_decoder_layers=2,
        hidden_dim=34,
        intermediate_dim=37,
        num_heads=2,
        max_relative_position=5,
        dropout=0.0,
    )
    directory.write_config(config.to_dict())
    model = Transformer(config)
    _train(model, tokenizer, pairs)
    directory.save_model(model)


def _train(model, tokenizer, pairs, steps=60, batch_size=31):
    source, target = (tokenizer.tokenize(list(texts)).to_tensor().numpy() for texts in zip(*pairs))
    rows = np.array(
        [random.Random(step).sample(range(len(pairs)), batch_size) for step in range(steps)]
    ).ravel()
    model.compile(
        keras.optimizers.Adam(0.005),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[],
        jit_compile=False,
    )
    model.fit(
        {"inputs": source[rows], "targets": target[rows]},
        target[rows],
        sample_weight=(target[rows] != 0).astype("float32"),
        batch_size=batch_size,
        shuffle=False,
        verbose=0,
    )


@pytest.fixture
def tokenizer(trained_model_dir):
    """Returns the tokenizer of the tiny model."""
    return ModelDirectory.open(trained_model_dir).load_tokenizer()


@pytest.fixture
def make_module(trained_model_dir):
    """Returns `make_module(**settings)`: a `TranslationModule` of the tiny model.

    The fixture has function scope, because every test sets TensorFlow's seed, which deletes the
    tokenizer's resource.
    """

    def make(max_input_length=MAX_INPUT_LENGTH, **settings):
        return TranslationModule.from_model_dir(
            trained_model_dir, TranslationSettings(max_input_length=max_input_length, **settings)
        )

    return make


@pytest.fixture(scope="session")
def exported_dir(trained_model_dir, made_once):
    """Returns the path of saved_models/tiny, with the tiny model as version 1."""

    def make(path):
        module = TranslationModule.from_model_dir(
            trained_model_dir, TranslationSettings(max_input_length=MAX_INPUT_LENGTH)
        )
        export(module, path / "tiny")

    return made_once("saved_models", make) / "tiny"


@pytest.fixture(scope="session")
def sentences():
    """Returns English sentences of different lengths that the tiny model was not trained on."""
    return [source for source, _ in generate("test", size=11)]


@pytest.fixture(scope="session")
def exported(exported_dir):
    """Returns a function that translates with the exported model."""
    return saved_models.load(exported_dir)


@pytest.fixture(scope="session")
def loaded(exported_dir):
    """Returns the exported model, loaded with TensorFlow."""
    return tf.saved_model.load(str(exported_dir / "1"))


class FakeWmt(NamedTuple):
    """Data folder of TensorFlow Datasets with a fake WMT 2014, and the pairs of its parts.

    See tests/support/fake_wmt.py.
    """

    data_dir: str
    pairs: Callable[[str], list[tuple[str, str]]]


@pytest.fixture(scope="session")
def wmt14(tmp_path_factory):
    """Returns wmt14_translate (de-en, fr-en), prepared from fake archives, as a `FakeWmt`."""
    import fake_wmt

    folder = tmp_path_factory.mktemp("wmt14")
    for languages in ("de-en", "fr-en"):
        fake_wmt.prepare(folder / "prepared", folder / languages, languages)
    return FakeWmt(str(folder / "prepared"), fake_wmt.sentence_pairs)


class SmallRun:
    """Trains a small model on twelve sentences in this process, with the preset "small".

    Call it as `small_run(directory, **settings)`.

    Attributes:
        text: settings with the files of the training data.
        dev: settings with the files of the dev set, which has the same sentences.
    """

    source = [
        f"the {pair[0]} sees a {pair[1]}"
        for pair in itertools.product(("dog", "cat", "bird"), ("man", "woman", "child", "tree"))
    ]
    target = [line.replace("the", "der").replace("sees a", "sieht einen") for line in source]

    def __init__(self, directory):
        for name, lines in (("source", self.source), ("target", self.target)):
            (directory / name).write_text("\n".join(lines) + "\n")
        self.text = {f"train_{name}": str(directory / name) for name in ("source", "target")}
        self.dev = {f"dev_{name}": str(directory / name) for name in ("source", "target")}

    def config(self, directory, **settings):
        """Returns the `RunConfig`."""
        sizes = {
            "vocab_size": 40,
            "batch_tokens": 30,
            "checkpoint_every": 2,
            "log_every": 2,
            "train_steps": 5,
        }
        return RunConfig(
            **{"preset": "small", "model_dir": str(directory)} | sizes | self.text | settings
        )

    def __call__(self, directory, **settings):
        train.train(self.config(directory, **settings))

    def fails(self, directory, **settings):
        """Asserts that the run exits with a message, and returns the message."""
        with pytest.raises(SystemExit) as stopped:
            self(directory, **settings)
        assert isinstance(stopped.value.code, str), "a message makes the exit code 1"
        assert stopped.value.code.lstrip().startswith("trainer.train: ")
        return stopped.value.code


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """Returns a `SmallRun`."""
    train_small.add_preset()
    # Optimizing the graphs takes a quarter of the time of a run. Runs in other processes do it.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield SmallRun(tmp_path_factory.mktemp("text"))
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    train_small.remove_preset()


@pytest.fixture
def fill_disk(monkeypatch):
    """Returns `fill_disk(owner, name)`, which replaces a function by one that finds a full disk."""

    def fail(*arguments, **named):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return lambda owner, name: monkeypatch.setattr(owner, name, fail)


@pytest.fixture
def real_text():
    """Returns `real_text(name)`, which returns a folder of text files or skips the test."""
    parent = Path(os.environ.get("SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))

    def find(name):
        if not (parent / name).is_dir():
            pytest.skip(f"No folder {parent / name}. Set SHARED_DATA to its parent.")
        return parent / name

    return find
