"""Test of plain `fit` of models of one's own on two devices, in a separate process.

tests/test_averaged_batches.py has the check of each argument.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from subprocesses import ROOT, environment, run_python

METRIC = "sparse_categorical_crossentropy"


def results(*cases):
    """Returns what the program fit_on_replicas.py prints."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests/support")])
    variables = environment(PYTHONPATH=paths, KERAS_BACKEND="tensorflow")
    program = Path(__file__).parent / "fit_on_replicas.py"
    return json.loads(run_python(program, *cases, env=variables).stdout)


def assert_equal_losses(found, names=("loss", METRIC)):
    for name in names:
        two, one = found["two"][name], found["one"][name]
        np.testing.assert_allclose(two, one, rtol=1e-6)
        assert np.size(one) == 1 or one[1] < one[0]


def test_losses_are_those_of_one_device():
    """Of the models, the last batch has one entry."""
    pytest.importorskip("tensorflow")
    summed = "AllIntegers", "CausalLM", "Transformer"
    mean = "fit", "evaluate", "train_on_batch"
    found = results(*summed, *mean)
    assert "Expected token ids of an integer dtype. Received: dtype float32." in found["floats"]
    for name in summed:
        # Keras does not log the mean of losses that are summed.
        assert_equal_losses(found[name], [METRIC])
    for name in mean:
        assert_equal_losses(found[name])
