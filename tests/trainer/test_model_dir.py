import functools
import hashlib
import json
import os
import stat
from types import SimpleNamespace

import pytest

from trainer.model_dir import ModelDirectory

ARCHITECTURE = {"num_layers": 3, "vocab_size": 11, "position": "relative"}

raises = functools.partial(pytest.raises, ValueError)


@pytest.fixture
def directory(tmp_path):
    made = ModelDirectory.create(tmp_path / "model")
    made.vocabulary_file().write_bytes(b"a vocabulary")
    digest = hashlib.sha256(b"a vocabulary").hexdigest()
    tokenizer = SimpleNamespace(kind="sentencepiece", sha256=digest)
    made.write_config(ARCHITECTURE, SimpleNamespace(by_side={"": tokenizer}))
    return made


def test_read_config_inverts_write_config(directory):
    config = ModelDirectory.open(directory.path).read_config()
    assert config["architecture"] == ARCHITECTURE
    assert config["format_version"] == 2
    assert config["tokenizer"]["kind"] == "sentencepiece"
    assert config["tokenizer"]["file"] == "vocab.model"


def test_kind_of_model(directory):
    assert directory.read_config()["model"] == directory.kind == "translation"
    ModelDirectory.open(directory.path, "translation")
    directory.write_config(ARCHITECTURE, model_kind="language_model")
    assert ModelDirectory.open(directory.path, "language_model").kind == "language_model"
    message = (
        "Expected a model directory with a model of kind translation. Received: .*model, with a "
        "model of kind language_model. A language model is trained with --train_text"
    )
    with raises(match=message):
        ModelDirectory.open(directory.path, "translation")


def test_files_of_earlier_versions_have_models_for_translation(directory):
    config = json.loads(directory.config_file.read_text())
    del config["model"]
    directory.config_file.write_text(json.dumps(config))
    assert ModelDirectory.open(directory.path, "translation").kind == "translation"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "Expected a model directory.*none, which does not exist. Create one with"),
        ("empty", "Received: .*empty, which has none"),
        ("file", "Received: .*file, which is a file"),
    ],
)
def test_open_of_another_path_raises(name, message, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with raises(match=message):
        ModelDirectory.open(tmp_path / name)


@pytest.mark.parametrize(("version", "age"), [(1, "an older"), (3, "a newer")])
def test_open_other_format_version_raises(directory, version, age):
    config = json.loads(directory.config_file.read_text())
    directory.config_file.write_text(json.dumps(config | {"format_version": version}))
    message = (
        "Expected a model directory of format version 2. Received: .*, of version "
        f"{version}, written by {age} version of this program."
    )
    with raises(match=message):
        ModelDirectory.open(directory.path)


@pytest.mark.parametrize("text", ["{", "[]", "7"])
def test_config_that_is_not_a_json_object_raises(directory, text):
    directory.config_file.write_text(text)
    with raises(match="Expected a JSON object. .*config.json, which is not one"):
        directory.read_config()


def test_check_same_reports_all_differences(directory):
    current = {"num_layers": 5, "vocab_size": 11, "dropout": 0.1}
    with raises() as caught:
        directory.check_same(directory.read_config()["architecture"], current, "configuration")
    message = str(caught.value)
    assert "num_layers is 3 in the directory and 5 in this run" in message
    assert 'position is "relative" in the directory and not set in this run' in message
    assert "dropout is not set in the directory and 0.1 in this run" in message
    assert "vocab_size" not in message
    assert "or another --model_dir" in message


def test_load_tokenizer_of_another_vocabulary_raises(directory):
    directory.vocabulary_file().write_bytes(b"another vocabulary")
    with raises(match="Expected the vocabulary that the model was trained with.*has changed since"):
        directory.load_tokenizer()
    directory.vocabulary_file().unlink()
    with raises(match="Expected the vocabulary of the model at .*vocab.model"):
        directory.load_tokenizer()
    directory.write_config(ARCHITECTURE)
    assert directory.tokenizer_kind == "none"
    with raises(match="Expected a model with a vocabulary. Received: .*imported without one"):
        directory.load_tokenizer()


def test_load_of_a_missing_or_unreadable_model_raises(directory):
    with raises(match="Expected a trained model at .*model.keras.*first checkpoint"):
        directory.load_model()
    directory.model_file.write_bytes(b"no zip file")
    with raises(match="Expected a readable Keras model. Received: .*model.keras"):
        directory.load_model()


def test_create_below_a_file_raises(tmp_path):
    (tmp_path / "file").write_text("")
    with raises(match="Expected a model directory that can be written. Received: .*file/model"):
        ModelDirectory.create(tmp_path / "file" / "model")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to all files")
def test_create_without_permission_raises(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with raises(match="Expected a model directory that can be written.*Permission denied"):
        ModelDirectory.create(tmp_path)


def test_create_removes_partly_written_files(tmp_path):
    (tmp_path / ".writing-model-x").mkdir()
    (tmp_path / ".writing-model-x" / "model.keras").write_bytes(b"half")
    for name in (".writing-ids-x", ".other"):
        (tmp_path / "ids" / "train" / name).mkdir(parents=True)
    ModelDirectory.create(tmp_path)
    left = "ids", "ids/train", "ids/train/.other"
    assert sorted(tmp_path.rglob("*")) == [tmp_path / name for name in left]
