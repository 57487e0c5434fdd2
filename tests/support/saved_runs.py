"""Checks of the files that a training run writes."""

import pathlib

import numpy as np

from trainer.model_dir import ModelDirectory
from trainer.training.checkpoints import Checkpoints, model_keys, read_weights


def assert_model_equals_last_checkpoint(directory):
    """Asserts that model.keras of a run has the weights of its last checkpoint."""
    checkpoints = Checkpoints(pathlib.Path(directory) / "checkpoints")
    saved = read_weights(checkpoints.path(checkpoints.steps()[-1]))
    for key, variable in model_keys(ModelDirectory.open(directory).load_model()).items():
        # Only resumed runs use the states of seed generators.
        if "seed_generator" not in key:
            np.testing.assert_array_equal(variable.value.numpy(), saved[key], err_msg=key)
