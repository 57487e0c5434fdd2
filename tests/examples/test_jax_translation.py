"""Tests that the example gives equal results on one device, two devices and other backends."""

import importlib.util

import keras
import numpy as np
import pytest
from backends import translation
from subprocesses import environment, run_python

from t2t_relpos.models import Transformer, TransformerConfig


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Returns the path of an untrained model, and the results of this process.

    Tests request it after they have found their backend, because it trains the model.
    """
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


def results(path, model_path, backend, devices):
    """Returns the results of the program, which runs in a separate process."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    variables = environment(KERAS_BACKEND=backend, XLA_FLAGS=flags)
    run_python(translation.__file__, model_path, path, devices, env=variables)
    with np.load(path) as arrays:
        return dict(arrays)


# Not slow: `make test-backends-core` runs these, on JAX and PyTorch.
@pytest.mark.parametrize(
    ("backend", "devices"), [("tensorflow", 1), ("jax", 2)], ids=["tensorflow", "jax-two-devices"]
)
def test_training_and_translations_equal_other_backends(backend, devices, request, tmp_path):
    if keras.backend.backend() == "tensorflow":
        pytest.skip("the runs on other backends compare with TensorFlow")
    if devices == 2 and keras.backend.backend() != "jax":
        pytest.skip("the run on JAX compares one device with two")
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    model_path, here = request.getfixturevalue("expected")
    assert here["losses"][-1] < 0.8 * here["losses"][0]
    found = results(tmp_path / "results.npz", model_path, backend, devices)
    np.testing.assert_allclose(found["losses"], here["losses"], rtol=1e-4)
    np.testing.assert_array_equal(found["ids"], here["ids"])
