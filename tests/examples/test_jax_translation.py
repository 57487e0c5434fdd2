"""Tests that the example gives equal results on one device, two devices and other backends."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from backends import translation

from t2t_relpos.models import Transformer, TransformerConfig

ROOT = Path(__file__).parents[2]
PROGRAM = translation.__file__


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Returns the path of an untrained model, and the results of this process."""
    path = tmp_path_factory.mktemp("model") / "model.keras"
    config = TransformerConfig(
        vocab_size=translation.words().vocab_size,
        num_encoder_layers=1,
        num_decoder_layers=1,
        hidden_dim=16,
        intermediate_dim=17,
        num_heads=2,
        max_relative_position=3,
        dropout=0.0,
    )
    keras.utils.set_random_seed(2)
    model = Transformer(config)
    model.save(path)
    return path, translation.run(model)


def results(path, model_path, backend, devices=1):
    """Returns the results of the program, which runs in a separate process."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    variables = {
        "KERAS_BACKEND": backend,
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    command = [sys.executable, PROGRAM, model_path, path, str(devices)]
    process = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.mark.parametrize(
    ("backend", "devices"),
    [("tensorflow", 1), ("jax", 1), ("jax", 2), ("torch", 1)],
    ids=["tensorflow", "jax-one-device", "jax-two-devices", "torch"],
)
def test_training_and_translations_equal_other_backends(backend, devices, expected, tmp_path):
    if (backend, devices) == (keras.backend.backend(), 1):
        pytest.skip("this configuration computes the expected results")
    model_path, here = expected
    assert here["losses"][-1] < 0.8 * here["losses"][0]
    found = results(tmp_path / "results.npz", model_path, backend, devices)
    np.testing.assert_allclose(found["losses"], here["losses"], rtol=1e-4)
    np.testing.assert_array_equal(found["ids"], here["ids"])
