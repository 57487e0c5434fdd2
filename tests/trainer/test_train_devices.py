"""How a run computes: precision, pieces, clipping, XLA."""

import json

import numpy as np
import pytest

from trainer.model_dir import ModelDirectory


def final_arrays(directory, step):
    return {
        name: dict(np.load(directory / "checkpoints" / f"step-{step:06d}" / f"{name}.npz"))
        for name in ("model", "optimizer")
    }


@pytest.mark.slow
def test_float16_in_pieces_goes_on_where_it_was(small_run, tmp_path):
    settings = {"precision": "float16", "device_tokens": 11, "clip_norm": 1.0}
    small_run(tmp_path / "whole", train_steps=3, **settings)
    for steps in (2, 3):
        small_run(tmp_path / "parts", train_steps=steps, **settings)
    whole, parts = (final_arrays(tmp_path / name, 3) for name in ("whole", "parts"))
    for group, arrays in whole.items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(parts[group][name], array, err_msg=f"{group} {name}")
    recorded = json.loads((tmp_path / "parts" / "run.json").read_text())
    assert recorded["strategy"] == "one", "what auto stands for here"
    model = ModelDirectory.open(tmp_path / "parts").load_model()
    assert model.compute_dtype == "float32"
    np.testing.assert_array_equal(
        model.get_weights()[0], parts["model"]["source_embedding/embeddings"]
    )
    assert 'precision is "float16" in the directory and "float32" in this run' in small_run.fails(
        tmp_path / "parts", clip_norm=1.0
    )


@pytest.mark.slow
def test_xla(small_run, tmp_path):
    for name, jit_compile in (("plain", False), ("xla", True)):
        small_run(tmp_path / name, train_steps=4, jit_compile=jit_compile, dropout=0.0)
    plain, compiled = (final_arrays(tmp_path / name, 4)["model"] for name in ("plain", "xla"))
    for name, array in plain.items():
        np.testing.assert_allclose(compiled[name], array, rtol=1e-4, atol=1e-6, err_msg=name)
