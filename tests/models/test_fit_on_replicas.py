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


def test_losses_are_those_of_one_device():
    pytest.importorskip("tensorflow")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests/support")])
    variables = environment(PYTHONPATH=paths, KERAS_BACKEND="tensorflow")
    program = Path(__file__).with_name("fit_on_replicas.py")
    found = json.loads(run_python(program, env=variables).stdout)
    assert "Expected token ids of an integer dtype. Received: dtype float32." in found["floats"]
    assert len(found["one"]) == 3
    for name, methods in found["one"].items():
        for method, losses in methods.items():
            # Keras does not log the mean of losses that are summed.
            for key in ("loss", METRIC) if name == "CausalLM" else (METRIC,):
                one, two = losses[key], found["two"][name][method][key]
                np.testing.assert_allclose(two, one, rtol=1e-6)
                assert np.size(one) == 1 or one[1] < one[0]
