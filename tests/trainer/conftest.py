"""Fixtures: a tiny trained model, small training runs, and a fake WMT 2014.

Modules that import TensorFlow Text, SentencePiece or sacreBLEU are imported by the fixtures that
need them.
"""

import contextlib
import errno
import fcntl
import functools
import io
import itertools
import os
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
import train_small
from model_directories import subword_vocabulary

from examples.synthetic_corpus import generate
from trainer import train
from trainer.config import RunConfig
from trainer.model_dir import ModelDirectory

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


@pytest.fixture(scope="session", autouse=True)
def without_flushes():
    """Lets `os.fsync` do nothing: on a busy disk it takes seconds. Other processes flush files."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def trained_model_dir(made_once):
    """Returns the path of a model directory. Its model is trained enough to end sentences."""
    return made_once("tiny", _make_model_dir)


@pytest.fixture(scope="session", params=["one", "two", "subwords"])
def each_model_dir(request, made_once):
    """Returns the path of a trained model: with one vocabulary, with two, or with subwords."""
    name = "tiny" if request.param == "one" else request.param
    return made_once(name, functools.partial(_make_model_dir, vocabularies=request.param))


def _make_model_dir(path, vocabularies="one"):
    from t2t_relpos.models import Transformer, TransformerConfig

    keras.utils.set_random_seed(20180402)
    pairs = generate("train", size=397)
    directory = ModelDirectory.create(path)
    tokenizers = _make_tokenizers(pairs, vocabularies)
    directory.save_tokenizers(tokenizers)
    config = TransformerConfig(
        **tokenizers.sizes,
        num_encoder_layers=1,
        num_decoder_layers=1,
        hidden_dim=16,
        intermediate_dim=17,
        num_heads=2,
        max_relative_position=5,
        dropout=0.0,
        tie_embeddings=tokenizers.is_shared,
    )
    directory.write_config(config.to_dict(), tokenizers)
    model = Transformer(config)
    _train(model, tokenizers, pairs)
    directory.save_model(model)


def _make_tokenizers(pairs, vocabularies):
    from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
    from trainer.data.subword_tokenizer import SubwordTokenizer
    from trainer.data.tokenizer import Tokenizers

    if vocabularies == "two":
        sides = zip(zip(*pairs), (131, 151))
        return Tokenizers(*(SentencePieceTokenizer.train(*side) for side in sides))
    texts = [text for pair in pairs for text in pair]
    if vocabularies == "one":
        return Tokenizers.shared(SentencePieceTokenizer.train(texts, vocab_size=211))
    words = sorted({f"{word}_" for text in texts for word in text.split()})
    return Tokenizers.shared(SubwordTokenizer(subword_vocabulary(words).encode()))


def _train(model, tokenizers, pairs, steps=100, batch_size=31):
    source, target = (
        tokenizer.tokenize(list(texts)).to_tensor().numpy()
        for tokenizer, texts in zip(tokenizers, zip(*pairs))
    )
    rows = np.array(
        [random.Random(step).sample(range(len(pairs)), batch_size) for step in range(steps)]
    ).ravel()
    model.compile(
        keras.optimizers.Adam(0.02),
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


def _make_module(model_dir, max_input_length=MAX_INPUT_LENGTH, **settings):
    from trainer.serving.translation_module import TranslationModule, TranslationSettings

    settings = TranslationSettings(max_input_length=max_input_length, **settings)
    return TranslationModule.from_model_dir(model_dir, settings)


@pytest.fixture
def make_module(trained_model_dir):
    """Returns `make_module(**settings)`: a `TranslationModule` of the tiny model.

    The fixture has function scope, because every test sets TensorFlow's seed, which deletes the
    tokenizer's resource.
    """
    return functools.partial(_make_module, trained_model_dir)


@pytest.fixture(scope="session")
def exported_dir(trained_model_dir, made_once):
    """Returns the path of saved_models/tiny, with the tiny model as version 1."""

    def make(path):
        from trainer.export import export

        export(_make_module(trained_model_dir), path / "tiny")

    return made_once("saved_models", make) / "tiny"


@pytest.fixture(scope="session")
def each_exported_dir(each_model_dir, made_once):
    """Returns the path of `each_model_dir` as an exported model."""

    def make(path):
        from trainer.export import export

        export(_make_module(each_model_dir), path / each_model_dir.name)

    # That of the tiny model is `exported_dir`.
    name = "saved_models" if each_model_dir.name == "tiny" else f"exported_{each_model_dir.name}"
    return made_once(name, make) / each_model_dir.name


@pytest.fixture(scope="session")
def sentences():
    """Returns English sentences of different lengths that the tiny model was not trained on."""
    return [source for source, _ in generate("test", size=11)]


@pytest.fixture(scope="session")
def exported(exported_dir):
    """Returns a function that translates with the exported model."""
    from trainer.serving import model_versions

    return model_versions.load(exported_dir)


@pytest.fixture(scope="session")
def loaded(exported):
    """Returns the exported model as TensorFlow loads it."""
    return exported.owner


@pytest.fixture(scope="session")
def wmt14(made_once):
    """Returns wmt14_translate (de-en), prepared from fake archives.

    Its attributes are `data_dir`, the data folder of TensorFlow Datasets, and `pairs(part)`.
    """
    import fake_wmt

    def make(folder):
        fake_wmt.prepare(folder / "prepared", folder / "archives")

    return SimpleNamespace(
        data_dir=str(made_once("wmt14", make) / "prepared"), pairs=fake_wmt.sentence_pairs
    )


def _test_step(model, batch):
    """Replaces an evaluation step. The loss depends on the ids and on a weight."""
    mean = tf.reduce_mean(tf.cast(batch["targets"], tf.float32))
    tokens = tf.cast(tf.size(batch["targets"]), tf.float32)
    loss = 0.01 * mean * tf.reduce_mean(tf.square(model.trainable_variables[0].value))
    model.statistics.update_state([loss * tokens, 0.0, tokens, tokens])
    return model.statistics.result()


def _train_step(model, batch):
    """Replaces a training step. All entries of the gradients are equal to the mean of the ids."""
    model._random.set_states([state + 1 for state in model._random.states()])
    logs = _test_step(model, batch)
    mean = tf.reduce_mean(tf.cast(batch["targets"], tf.float32))
    variables = model.trainable_variables
    model.optimizer.apply([tf.fill(variable.shape, mean) for variable in variables], variables)
    return logs | {"gradient_norm": mean}


class SmallRun:
    """Trains a small model on twelve sentences in this process, with the preset "small".

    Call it as `small_run(directory, **settings)`. Steps are stubs that change all weights and run
    eagerly, because tracing the graph of a real step takes longer than all else. With
    `real_steps=True`, the run trains like `trainer.train`.

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
        sides = "source", "target"
        self.text = {f"train_{side}": str(directory / side) for side in sides}
        self.dev = {f"dev_{side}": str(directory / side) for side in sides}

    @classmethod
    def write_text(cls, directory):
        """Writes the text files to a new directory."""
        directory.mkdir()
        for name, lines in (("source", cls.source), ("target", cls.target)):
            (directory / name).write_text("\n".join(lines) + "\n")

    def settings(self, kind):
        """Returns the settings of a kind of run: its files, with a dev set, and vocabularies.

        A "text" trains a language model on the sources.
        """
        if kind == "text":
            files = {"train_text": self.text["train_source"], "dev_text": self.dev["dev_target"]}
            return dict.fromkeys(self.text) | files | {"batch_tokens": 60}
        return self.dev | (TWO_VOCABULARIES if kind == "two vocabularies" else {})

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

    def __call__(self, directory, real_steps=False, **settings):
        from trainer.training.training_model import TrainingModel

        compile = functools.partialmethod(TrainingModel.compile, run_eagerly=True)
        stubs = mock.patch.multiple(
            TrainingModel, compile=compile, train_step=_train_step, test_step=_test_step
        )
        with contextlib.nullcontext() if real_steps else stubs:
            train.train(self.config(directory, **settings))

    def fails(self, directory, **settings):
        """Asserts that the run exits with a message, and returns the message."""
        with pytest.raises(SystemExit) as stopped:
            self(directory, **settings)
        assert isinstance(stopped.value.code, str), "a message makes the exit code 1"
        assert stopped.value.code.lstrip().startswith("trainer.train: ")
        return stopped.value.code


@pytest.fixture(scope="module")
def small_run(made_once):
    """Returns a `SmallRun`."""
    train_small.add_preset()
    # Optimizing the graphs takes a quarter of the time of a run. Runs in other processes do it.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield SmallRun(made_once("text", SmallRun.write_text))
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    train_small.remove_preset()


FINISHED = {"checkpoint_every": 3, "evaluate_every": 4, "train_steps": 9}
TWO_VOCABULARIES = {"vocab_size": 37, "source_vocab_size": 31}


class FinishedRun(NamedTuple):
    """A run with a dev set, which tests must not change.

    Attributes:
        kind: "pair" of text files with one vocabulary, "two vocabularies", or "text".
        path: the model directory. The file `output` next to it has the lines that the run printed.
        settings: the settings that differ from those of `SmallRun.config`.
    """

    kind: str
    path: Path
    settings: dict

    @property
    def directory(self):
        return ModelDirectory.open(self.path)

    @property
    def sizes(self):
        sizes = {"vocab_size": 40, "source_vocab_size": None}
        return {name: self.settings.get(name, size) for name, size in sizes.items()}


@pytest.fixture(scope="module")
def finish(small_run, made_once):
    """Returns `finish(kind)`, which returns the `FinishedRun` of a kind."""

    def finish(kind):
        settings = FINISHED | small_run.settings(kind)

        def make(path):
            with contextlib.redirect_stdout(io.StringIO()) as output:
                small_run(path / "model", **settings)
            (path / "output").write_text(output.getvalue())

        path = made_once(f"finished_{kind.replace(' ', '_')}", make)
        return FinishedRun(kind, path / "model", settings)

    return finish


@pytest.fixture(scope="module", params=["pair", "two vocabularies", "text"])
def each_run(request, finish):
    """Returns the `FinishedRun` of each kind."""
    return finish(request.param)


@pytest.fixture(scope="module")
def finished_run(finish):
    """Returns the path of the `FinishedRun` of a pair of text files with one vocabulary."""
    return finish("pair").path


@pytest.fixture
def finished(finished_run, tmp_path):
    """Returns a copy of `finished_run` that a test may change."""
    return shutil.copytree(finished_run, tmp_path / "finished")


@pytest.fixture
def rerun(finished, small_run):
    """Returns `rerun(run, **changes)`: calls `run` with `finished` and its settings."""
    return lambda run, **changes: run(finished, **FINISHED | small_run.dev | changes)


@pytest.fixture
def fill_disk(monkeypatch):
    """Returns `fill_disk(owner, name)`, which replaces a function by one that finds a full disk."""

    def fail(*arguments, **named):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return lambda owner, name: monkeypatch.setattr(owner, name, fail)
