"""Tests of training with real steps: on one device and two devices, in float16, with XLA.

In all other tests of runs in this process, steps are stubs.
"""

import functools
import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import train_small
from saved_runs import assert_model_equals_last_checkpoint
from subprocesses import run_python

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


def two_devices(small_run, directory, *flags, text=None):
    """Trains on two devices in a new process, and returns its output.

    Devices can be defined only in a process that has not used TensorFlow.
    """
    settings = {"preset": "small", "model_dir": directory, "vocab_size": 40}
    settings |= {"batch_tokens": 30, "checkpoint_every": 3, "keep_best": 1}
    settings |= {"strategy": "mirrored", "logical_devices": 2}
    pairs = small_run.text | small_run.dev
    texts = [f"--{k}={v}" for k, v in (settings | (text or pairs)).items()]
    return run_python(train_small.__file__, *texts, *flags).stdout


@pytest.mark.slow
def test_training_on_two_devices_resumes(small_run, tmp_path):
    for steps in (3, 5):
        flags = "--deterministic", f"--train_steps={steps}"
        two_devices(small_run, tmp_path / "two", *flags)
    recorded = json.loads((tmp_path / "two" / "run.json").read_text())
    assert (recorded["strategy"], recorded["train_steps"]) == ("mirrored", 5)
    assert recorded["jit_compile"] is False
    assert final_arrays(tmp_path / "two", 5)["optimizer"]["iteration"] == 5
    assert [entry["step"] for entry in evaluations(tmp_path / "two")] == [3, 5]
    assert len(list((tmp_path / "two" / "best").glob("step-*/model.npz"))) == 1
    assert_model_equals_last_checkpoint(tmp_path / "two")


@pytest.mark.slow
def test_language_model_on_two_devices_resumes_exactly(small_run, tmp_path):
    text = dict.fromkeys(("train_text", "dev_text"), small_run.text["train_source"])
    for name, steps in (("resumed", 3), ("resumed", 5), ("whole", 5)):
        flags = "--deterministic", f"--train_steps={steps}"
        two_devices(small_run, tmp_path / name, *flags, text=text)
    arrays = [final_arrays(tmp_path / name, 5) for name in ("resumed", "whole")]
    for part in arrays[0]:
        for key, array in arrays[0][part].items():
            np.testing.assert_array_equal(array, arrays[1][part][key], err_msg=key)
    assert ModelDirectory.open(tmp_path / "whole").kind == "language_model"


@pytest.mark.slow
def test_xla_on_two_devices_resumes_exactly(small_run, tmp_path):
    """With dropout and micro-batches. The resumed run keeps XLA without the flag."""
    run = functools.partial(two_devices, small_run)
    memory = "--device_tokens=20"
    output = run(tmp_path / "whole", memory, "--jit_compile", "--train_steps=3")
    lines = [line for line in output.splitlines() if "XLA" in line]
    assert lines[0] == (
        "XLA: compiles at most 12 programs, one for each of 6 buckets on each of 2 devices."
    )
    counts = [re.fullmatch(r"step \d/3: XLA .* \d+\.\d s, .* so far: (\d)", x) for x in lines[1:]]
    assert [int(count[1]) for count in counts] == [2, 4, 6][: len(counts)] and counts
    run(tmp_path / "resumed", memory, "--jit_compile", "--train_steps=2")
    run(tmp_path / "resumed", memory, "--train_steps=3")
    recorded = json.loads((tmp_path / "resumed" / "run.json").read_text())
    assert (recorded["strategy"], recorded["jit_compile"]) == ("mirrored", True)
    whole, resumed = (final_arrays(tmp_path / name, 3) for name in ("whole", "resumed"))
    for group, arrays in whole.items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(resumed[group][name], array, err_msg=f"{group} {name}")


def test_run_continues_without_xla_if_it_fails_on_a_device(
    small_run, tmp_path, monkeypatch, caplog
):
    def fail(self):
        raise tf.errors.InternalError(None, None, "libdevice not found")

    monkeypatch.setattr(CompiledOnReplicas, "of_replica", fail)
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
