"""Tests of training with real steps: on one device and two devices, in float16, with XLA.

In all other tests of runs in this process, steps are stubs.
"""

import functools
import itertools
import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from saved_runs import assert_model_equals_last_checkpoint
from subprocesses import ROOT, environment, run_python

from trainer.data.encoding import encode_pairs
from trainer.data.text_files import read_text
from trainer.model_dir import ModelDirectory
from trainer.training import training_run
from trainer.training.compiled_steps import CompiledOnReplicas


def final_arrays(directory, step):
    return {
        name: dict(np.load(directory / "checkpoints" / f"step-{step:06d}" / f"{name}.npz"))
        for name in ("model", "optimizer")
    }


def evaluations(directory):
    return json.loads((directory / "evaluations.json").read_text())


def test_dev_loss_is_that_of_the_saved_model(small_run, tmp_path):
    small_run(tmp_path, real_steps=True, evaluate_every=3, **small_run.dev)
    before, after = evaluations(tmp_path)
    assert (before["step"], after["step"]) == (3, 5)
    assert_model_equals_last_checkpoint(tmp_path)
    directory = ModelDirectory.open(tmp_path)
    pairs = encode_pairs(read_text(*small_run.dev.values()), directory.load_tokenizers())
    inputs, targets = (side.padded(np.arange(12)) for side in (pairs.sources, pairs.targets))
    logits = directory.load_model()({"inputs": inputs, "targets": targets})
    losses = keras.losses.sparse_categorical_crossentropy(targets, logits, from_logits=True)
    loss = np.mean(np.asarray(losses)[targets != 0])
    assert after["loss"] == pytest.approx(loss, rel=1e-5) and loss < before["loss"]


@pytest.mark.slow
def test_float16_with_micro_batches_resumes_exactly(small_run, tmp_path):
    settings = {"precision": "float16", "device_tokens": 11, "clip_norm": 1.0}
    run = functools.partial(small_run, real_steps=True, **settings)
    run(tmp_path / "uninterrupted", train_steps=3)
    for steps in (2, 3):
        run(tmp_path / "resumed", train_steps=steps)
    uninterrupted, resumed = (
        final_arrays(tmp_path / name, 3) for name in ("uninterrupted", "resumed")
    )
    for group, arrays in uninterrupted.items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(resumed[group][name], array, err_msg=f"{group} {name}")
    model = ModelDirectory.open(tmp_path / "resumed").load_model()
    assert model.compute_dtype == "float32"
    np.testing.assert_array_equal(
        model.get_weights()[0], resumed["model"]["source_embedding/embeddings"]
    )
    assert 'precision is "float16" in the directory and "float32" in this run' in small_run.fails(
        tmp_path / "resumed", clip_norm=1.0
    )


@pytest.mark.slow
def test_xla_equals_no_xla(small_run, tmp_path, capsys):
    lines = {}
    for name, jit_compile in (("plain", False), ("xla", True)):
        settings = {"train_steps": 4, "jit_compile": jit_compile, "dropout": 0.0}
        small_run(tmp_path / name, real_steps=True, **settings)
        lines[name] = [line for line in capsys.readouterr().out.splitlines() if "XLA" in line]
    assert lines["plain"] == []
    first, *compiled = lines["xla"]
    assert first == "XLA: compiles at most 6 programs, one for each bucket."
    assert re.fullmatch(r"step 1/4: XLA compiled for \d+\.\d s, programs so far: 1", compiled[0])
    assert len(compiled) <= 4
    plain, compiled = (final_arrays(tmp_path / name, 4)["model"] for name in ("plain", "xla"))
    for name, array in plain.items():
        np.testing.assert_allclose(compiled[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


# Devices can be defined only in a process that has not used TensorFlow.
TRAIN = """
import json, sys
import train_small
from trainer import train
from trainer.config import RunConfig

train_small.add_preset()
for settings in json.loads(sys.argv[1]):
    train.train(RunConfig(**settings))
"""
TWO_DEVICES = {"preset": "small", "vocab_size": 12, "batch_tokens": 30, "checkpoint_every": 3}
TWO_DEVICES |= {"strategy": "mirrored", "logical_devices": 2}


def train_on_two_devices(runs):
    """Trains in a new process: for each run, settings in addition to `TWO_DEVICES`.

    The runs must have the same model: TensorFlow keeps the shapes of sums over devices. Returns
    the output.
    """
    env = environment(PYTHONPATH=f"{ROOT}:{ROOT / 'tests/support'}")
    return run_python("-c", TRAIN, json.dumps([TWO_DEVICES | run for run in runs]), env=env).stdout


@pytest.fixture
def text(tmp_path):
    """Returns a file of lines of the same length, so that XLA compiles a single bucket."""
    lines = map(" ".join, itertools.permutations("abcd"))
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    return str(tmp_path / "text")


def resume_on_two_devices(folder, steps, first, resumed):
    """Trains `whole`, and `parts`, which another process resumes. Returns the first output.

    Asserts that both have the same arrays.
    """
    whole, parts = ({"model_dir": str(folder / name)} for name in ("whole", "parts"))
    stop = {"train_steps": steps - 1}
    output = train_on_two_devices([whole | first, parts | first | stop])
    train_on_two_devices([parts | resumed])
    found, expected = (final_arrays(folder / name, steps) for name in ("parts", "whole"))
    for group, arrays in expected.items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[group][name], array, err_msg=f"{group} {name}")
    assert expected["optimizer"]["iteration"] == steps
    assert_model_equals_last_checkpoint(folder / "parts")
    recorded = json.loads((folder / "parts" / "run.json").read_text())
    assert (recorded["strategy"], recorded["train_steps"]) == ("mirrored", steps)
    assert recorded["jit_compile"] is first.get("jit_compile", False)
    return output


@pytest.mark.slow
def test_language_model_on_two_devices_resumes_exactly(text, tmp_path):
    settings = {"train_text": text, "dev_text": text, "keep_best": 1, "deterministic": True}
    settings |= {"train_steps": 4}
    resume_on_two_devices(tmp_path, 4, settings, settings)
    for name in ("whole", "parts"):
        directory = ModelDirectory.open(tmp_path / name)
        assert directory.kind == "language_model"
        assert [entry["step"] for entry in evaluations(directory.path)] == [3, 4]
        assert len(list(directory.best.glob("step-*/model.npz"))) == 1


@pytest.mark.slow
def test_xla_on_two_devices_resumes_exactly(text, tmp_path):
    """With dropout and micro-batches. The resumed run keeps XLA without the flag."""
    settings = {"train_source": text, "train_target": text, "device_tokens": 10, "train_steps": 3}
    first = settings | {"jit_compile": True}
    output = resume_on_two_devices(tmp_path, 3, first, settings)
    lines = [line for line in output.splitlines() if "XLA" in line]
    assert lines[0] == (
        "XLA: compiles at most 2 programs, one for each of 1 buckets on each of 2 devices."
    )
    assert re.fullmatch(r"step 1/3: XLA compiled for \d+\.\d s, programs so far: 2", lines[1])


def test_run_continues_without_xla_if_it_fails_on_a_device(
    small_run, tmp_path, monkeypatch, caplog
):
    def fail(self):
        raise tf.errors.InternalError(None, None, "libdevice not found")

    monkeypatch.setattr(CompiledOnReplicas, "current_function", fail)
    devices = tf.distribute.MirroredStrategy(["CPU:0"])
    monkeypatch.setattr(training_run, "make_strategy", lambda *_: devices)
    settings = {"strategy": "mirrored", "jit_compile": True, "train_steps": 1}
    small_run(tmp_path / "failing", **settings)
    assert [record.message for record in caplog.records if record.name == "absl"] == [
        "Training continues without XLA. A small compiled program failed: InternalError: "
        "libdevice not found"
    ]
    recorded = json.loads((tmp_path / "failing" / "run.json").read_text())
    assert (recorded["strategy"], recorded["jit_compile"]) == ("mirrored", False)
    assert final_arrays(tmp_path / "failing", 1)["optimizer"]["iteration"] == 1
