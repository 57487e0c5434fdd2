"""Tests of runs with float16, micro-batches, clipping and XLA."""

import json
import re

import numpy as np
import pytest

from trainer.model_dir import ModelDirectory


def final_arrays(directory, step):
    return {
        name: dict(np.load(directory / "checkpoints" / f"step-{step:06d}" / f"{name}.npz"))
        for name in ("model", "optimizer")
    }


@pytest.mark.slow
def test_float16_with_micro_batches_resumes_exactly(small_run, tmp_path):
    settings = {"precision": "float16", "device_tokens": 11, "clip_norm": 1.0}
    small_run(tmp_path / "uninterrupted", train_steps=3, **settings)
    for steps in (2, 3):
        small_run(tmp_path / "resumed", train_steps=steps, **settings)
    uninterrupted, resumed = (
        final_arrays(tmp_path / name, 3) for name in ("uninterrupted", "resumed")
    )
    for group, arrays in uninterrupted.items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(resumed[group][name], array, err_msg=f"{group} {name}")
    recorded = json.loads((tmp_path / "resumed" / "run.json").read_text())
    assert recorded["strategy"] == "one", "auto must be resolved"
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
        small_run(tmp_path / name, train_steps=4, jit_compile=jit_compile, dropout=0.0)
        lines[name] = [line for line in capsys.readouterr().out.splitlines() if "XLA" in line]
    assert lines["plain"] == []
    first, *compiled = lines["xla"]
    assert first == "XLA: compiles at most 6 programs, one for each bucket."
    assert re.fullmatch(r"step 1/4: XLA program 1 compiled in \d+\.\d s", compiled[0])
    assert len(compiled) <= 4
    plain, compiled = (final_arrays(tmp_path / name, 4)["model"] for name in ("plain", "xla"))
    for name, array in plain.items():
        np.testing.assert_allclose(compiled[name], array, rtol=1e-4, atol=1e-6, err_msg=name)
