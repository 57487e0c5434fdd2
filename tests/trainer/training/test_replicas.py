"""Tests that training on one device, several devices and several processes is equal."""

import json
import os
import pathlib
import socket
import subprocess

import numpy as np
import pytest
from subprocesses import ROOT, environment, python_command, run_python

pytestmark = pytest.mark.slow
PROGRAM = pathlib.Path(__file__).parent / "replicas.py"
PARTS = ["batch 0", "batch 1", "batch 2", "6 steps", "evaluate", "Adam"]
PATHS = os.pathsep.join([str(ROOT), str(ROOT / "tests/support")])


@pytest.fixture(scope="module")
def one_and_two(tmp_path_factory):
    """Returns the results of one replica and of two."""
    return run_program(tmp_path_factory.mktemp("replicas"), 1, 2)


def run_program(directory, *counts):
    """Returns the results of the program for each number of replicas.

    Within a process, TensorFlow supports sums over only one number of devices above 1.
    """
    files = [directory / f"{count}.npz" for count in counts]
    arguments = [each for pair in zip(files, counts) for each in pair]
    run_python(PROGRAM, *arguments, env=environment(PYTHONPATH=PATHS))
    return [dict(np.load(file)) for file in files]


def check_same(found, expected, part):
    names = [name for name in expected if name.startswith(part)]
    assert f"{part} loss" in names
    for name in names:
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-5, atol=2e-6, err_msg=name)


def check_skipped_updates(found):
    np.testing.assert_array_equal(found[f"scale {2.0**120}"], [2.0**120, 2.0**119])
    np.testing.assert_array_equal(found[f"scale {2.0**10}"], [2.0**10, 2.0**10])
    assert found["moved"].tolist() == [False, True]
    assert found["updates"] == 5


def check_replicas(one, found, count):
    """Checks the results of `count` replicas."""
    assert found.keys() == one.keys()
    for part in PARTS:
        check_same(found, one, part)
    check_skipped_updates(found)
    # With a shared mask, equal batch entries would have equal losses.
    assert found["dropout loss"] != pytest.approx(one["dropout loss"], rel=1e-3)
    expected = np.repeat(one["dropout states"], count, axis=1)
    np.testing.assert_array_equal(found["dropout states"], expected)


def test_two_replicas_equal_one(one_and_two):
    one, two = one_and_two
    check_skipped_updates(one)
    check_replicas(one, two, 2)


@pytest.mark.long
def test_four_replicas_equal_one(one_and_two, tmp_path):
    [four] = run_program(tmp_path, 4)
    check_replicas(one_and_two[0], four, 4)


def test_batches_differ_in_tokens_and_clipping(one_and_two):
    one = one_and_two[0]
    assert [float(one[f"batch {i} target_tokens"][0]) for i in range(3)] == [14, 10, 3]
    norms = [float(one[f"batch {i} gradient_norm"][0]) for i in range(3)]
    assert min(norms) < 2.0 < max(norms), "some gradients are clipped, some are not"


def test_two_processes_equal_one(tmp_path, one_and_two):
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(2)]}
    files = [tmp_path / f"{index}.npz" for index in range(2)]
    workers = []
    for index, file in enumerate(files):
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        variables = environment(TF_CONFIG=config, PYTHONPATH=PATHS)
        workers.append(subprocess.Popen(python_command(PROGRAM, file), env=variables))
    assert [worker.wait(timeout=600) for worker in workers] == [0, 0]
    one, two = one_and_two
    for file in files:
        found = dict(np.load(file))
        for part in PARTS:
            check_same(found, one, part)
        np.testing.assert_allclose(found["dropout loss"], two["dropout loss"], rtol=1e-6)
        check_skipped_updates(found)


def free_ports(count):
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
