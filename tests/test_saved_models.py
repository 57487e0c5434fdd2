"""Models that earlier versions saved load, decode the same ids and resume training."""

import functools
import json
import shutil
import tarfile
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import t2t_relpos  # noqa: F401 (registers the layers)

REFERENCE = Path(__file__).parent / "reference"
# 0.3 stands for commit a5c5533, before the release.
VERSIONS = ("0_2", "0_3")
DIRECTORIES = ("relative", "untied", "post_norm", "float16", "subwords")


@pytest.fixture(scope="module", params=VERSIONS)
def folder(request, tmp_path_factory):
    """Returns the folder of the recorded models, which tests must not change."""
    path = tmp_path_factory.mktemp("saved_models")
    with tarfile.open(REFERENCE / f"saved_models_{request.param}.tar.xz") as archive:
        archive.extractall(path, filter="data")
    return path


@pytest.fixture(scope="module")
def expected(folder):
    """Returns the recorded arrays by name."""
    with np.load(folder / "expected.npz") as arrays:
        return dict(arrays)


def as_array(x):
    return ops.convert_to_numpy(ops.cast(x, "float32"))


# Each version, and each model, in a fast test.
FAST = {"0_2": ("relative", "subwords", "post_norm"), "0_3": ("untied", "float16", "causal_lm")}


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        pytest.param(version, name, marks=() if name in FAST[version] else pytest.mark.slow)
        for version in VERSIONS
        for name in (*DIRECTORIES, "causal_lm")
    ],
    indirect=["folder"],
)
def test_models_decode_the_same_ids(name, folder, expected, eager_searches):
    path = folder / name
    path = path / "model.keras" if path.is_dir() else path.with_suffix(".keras")
    model = keras.saving.load_model(path)
    inputs, decoded, logits = (
        expected[f"{name}/{part}"] for part in ("inputs", "decoded", "logits")
    )
    arguments = decoded if name == "causal_lm" else {"inputs": inputs, "targets": decoded}
    tolerance = 2e-2 if name == "float16" else 1e-5
    np.testing.assert_allclose(as_array(model(arguments)), logits, atol=tolerance)
    found = model.generate(inputs, "beam", max_length=decoded.shape[1], jit_compile=False)
    np.testing.assert_array_equal(found, decoded)


@pytest.mark.parametrize("name", DIRECTORIES)
def test_tokenizers_of_model_directories(name, folder, expected, tf):
    from trainer.model_dir import ModelDirectory

    sentences = json.loads((folder / "saved_model.json").read_text())["sentences"]
    tokenizer = ModelDirectory.open(folder / name).load_tokenizer()
    ids = tokenizer.tokenize(tf.constant(sentences)).to_tensor()
    np.testing.assert_array_equal(ids, expected[f"{name}/inputs"])


def test_layers_compute_the_same_outputs(folder, expected):
    model = keras.saving.load_model(folder / "layers.keras")

    def group(kind):
        prefix = f"layers/{kind}/"
        return {k.removeprefix(prefix): x for k, x in expected.items() if k.startswith(prefix)}

    found, outputs = model(group("inputs")), group("outputs")
    assert found.keys() == outputs.keys()
    for name, output in outputs.items():
        np.testing.assert_allclose(as_array(found[name]), output, atol=1e-5, err_msg=name)


def test_float16_run_resumes(folder, tmp_path, monkeypatch, capsys, tf):
    from t2t_relpos.models import PRESETS
    from trainer import recipes, train
    from trainer.config import RunConfig
    from trainer.model_dir import ModelDirectory
    from trainer.training.training_model import TrainingModel

    # Tracing a graph takes longer than two steps.
    compile_eagerly = functools.partialmethod(TrainingModel.compile, run_eagerly=True)
    monkeypatch.setattr(TrainingModel, "compile", compile_eagerly)
    directory = ModelDirectory(shutil.copytree(folder / "float16", tmp_path / "float16"))
    recorded = json.loads(directory.run_file.read_text())
    names = "preset vocab_size batch_tokens learning_rate warmup_steps precision jit_compile"
    settings = {name: recorded[name] for name in names.split()}
    monkeypatch.setitem(PRESETS, "saved", directory.read_config()["architecture"])
    monkeypatch.setitem(recipes.RECIPES, "saved", recipes.RECIPES["tiny"])
    changes = {
        "model_dir": str(directory.path),
        "train_steps": 22,
        "checkpoint_every": 2,
        **{f"train_{side}": str(folder / f"{side}.txt") for side in ("source", "target")},
    }
    train.train(RunConfig(**settings | changes))
    assert "Training from step 20 to 22." in capsys.readouterr().out
    before, after = (
        dict(np.load(path / "model.npz"))
        for path in (
            folder / "float16/checkpoints/step-000020",
            directory.path / "checkpoints/step-000022",
        )
    )
    assert before.keys() == after.keys()
    weights = [name for name in before if "seed_generator" not in name]
    assert all(np.isfinite(after[name]).all() for name in weights)
    assert any(np.any(after[name] != before[name]) for name in weights)


def test_saved_model_translates_as_before(folder, tf):
    import tensorflow_text  # noqa: F401 (registers operations)

    recorded = json.loads((folder / "saved_model.json").read_text())
    saved_model = tf.saved_model.load(str(folder / "saved_model" / "1"))
    found = saved_model.signatures["serving_default"](tf.constant(recorded["sentences"]))
    results = recorded["results"]
    assert found.keys() == results.keys()
    texts = [text.decode() for text in found["translations"].numpy()]
    assert texts == results["translations"]
    np.testing.assert_allclose(found["scores"], results["scores"], atol=1e-5)
