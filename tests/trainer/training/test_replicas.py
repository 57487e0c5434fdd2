"""Tests that training on one device, several devices and several processes is equal."""

import json
import pathlib
import socket
import subprocess

import numpy as np
import pytest
from subprocesses import environment, python_command, run_python

PROGRAM = pathlib.Path(__file__).parent / "replicas.py"
PARTS = ["batch 0", "batch 1", "batch 2", "20 steps", "evaluate", "Adam"]


def on_devices(directory, *counts):
    files = {count: str(directory / f"{count}.npz") for count in counts}
    arguments = [argument for count, file in files.items() for argument in (file, str(count))]
    run_python(PROGRAM, *arguments)
    return [dict(np.load(file)) for file in files.values()]


@pytest.fixture(scope="module")
def one_two_and_four(tmp_path_factory):
    directory = tmp_path_factory.mktemp("replicas")
    # Within a process, TensorFlow supports sums over only one number of devices above 1.
    return [found for counts in ((1, 2), (4,)) for found in on_devices(directory, *counts)]


def check_same(found, expected, part):
    names = [name for name in expected if name.startswith(part)]
    assert f"{part} loss" in names
    for name in names:
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.slow
def test_two_and_four_replicas_equal_one(one_two_and_four, part):
    one, *several = one_two_and_four
    for found in several:
        assert found.keys() == one.keys()
        check_same(found, one, part)


@pytest.mark.slow
def test_batches_differ_in_tokens_and_clipping(one_two_and_four):
    one = one_two_and_four[0]
    assert [float(one[f"batch {i} target_tokens"][0]) for i in range(3)] == [14, 10, 3]
    norms = [float(one[f"batch {i} gradient_norm"][0]) for i in range(3)]
    assert min(norms) < 2.0 < max(norms), "some gradients are clipped, some are not"


@pytest.mark.slow
def test_replicas_have_different_dropout_and_equal_states(one_two_and_four):
    one, *several = one_two_and_four
    for count, found in zip((2, 4), several, strict=True):
        # With a shared mask, equal batch entries would have equal losses.
        assert found["dropout loss"] != pytest.approx(one["dropout loss"], rel=1e-3)
        assert found["dropout states"].shape[1] == count
        for replica in range(count):
            np.testing.assert_array_equal(
                found["dropout states"][:, replica], one["dropout states"][:, 0]
            )


def check_skipped_updates(found):
    np.testing.assert_array_equal(found[f"scale {2.0**120}"], [2.0**120, 2.0**119])
    np.testing.assert_array_equal(found[f"scale {2.0**10}"], [2.0**10, 2.0**10])
    assert found["moved"].tolist() == [False, True]
    assert found["updates"] == 5


@pytest.mark.slow
def test_not_finite_updates_are_skipped(one_two_and_four):
    for found in one_two_and_four:
        check_skipped_updates(found)


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path, one_two_and_four):
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(2)]}
    files = [tmp_path / f"{index}.npz" for index in range(2)]
    workers = []
    for index, file in enumerate(files):
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        command = python_command(PROGRAM, file)
        workers.append(subprocess.Popen(command, env=environment(TF_CONFIG=config)))
    assert [worker.wait(timeout=600) for worker in workers] == [0, 0]
    one, two, _ = one_two_and_four
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
