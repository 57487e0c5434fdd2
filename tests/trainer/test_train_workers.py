"""Tests of training in several processes. The tests kill one of them."""

import json
import re
import signal
import socket
import subprocess
import time

import pytest
import train_small
from saved_runs import assert_model_equals_last_checkpoint
from subprocesses import environment, python_command

from trainer.model_dir import ModelDirectory

WORKERS = 2


class Workers:
    """Worker processes on this machine, each with its output in a file."""

    def __init__(self, directory, flags):
        ports = [socket.create_server(("localhost", 0)) for _ in range(WORKERS)]
        cluster = {"worker": [f"localhost:{port.getsockname()[1]}" for port in ports]}
        for port in ports:
            port.close()
        self.files = [directory / f"output-{index}" for index in range(WORKERS)]
        command = python_command(train_small.__file__, "--strategy=multiworker", *flags)
        self.processes = []
        for index, file in enumerate(self.files):
            task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
            with file.open("w") as output:
                options = {"stdout": output, "stderr": subprocess.STDOUT}
                env = environment(TF_CONFIG=json.dumps(task))
                self.processes.append(subprocess.Popen(command, env=env, **options))

    def wait(self, index, timeout=300):
        return self.processes[index].wait(timeout)

    def output(self, index):
        """Returns the output lines of a worker, without TensorFlow's messages."""
        lines = self.files[index].read_text().splitlines()
        return [
            line
            for line in lines
            if not re.match(r"WARNING: All log|[IWE]\d{4}|Additional GRPC|:UNKNOWN", line)
        ]

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def start(small_run, tmp_path):
    """Returns `start(**settings)`: starts workers with a shared model directory."""
    started = []
    common = {"preset": "small", "model_dir": tmp_path / "model", "vocab_size": 40}
    common |= {"batch_tokens": 90} | small_run.text | small_run.dev

    def start(**settings):
        flags = [f"--{name}={value}" for name, value in (common | settings).items()]
        started.append(Workers(tmp_path, flags))
        return started[-1]

    yield start
    for workers in started:
        workers.end()


def wait_for_step(directory, step, workers):
    for _ in range(3000):
        if last_step(directory) >= step:
            return
        assert workers.processes[0].poll() is None, workers.output(0)
        time.sleep(0.1)
    raise AssertionError(f"No checkpoint of step {step} was written in time.")


def last_step(directory):
    return max((int(path.name[5:]) for path in directory.checkpoints.glob("step-*")), default=0)


@pytest.mark.slow
def test_run_resumes_after_each_worker_was_killed(start, tmp_path):
    settings = {"dev_bleu": True, "evaluate_every": 4, "checkpoint_every": 3}
    settings |= {"keep_checkpoints": 2}
    directory = ModelDirectory(tmp_path / "model")
    saved = 0
    for lost in (1, 0):
        workers = start(train_steps=100_000, **settings)
        wait_for_step(directory, saved + 3, workers)
        workers.processes[lost].send_signal(signal.SIGKILL)
        assert workers.wait(1 - lost, timeout=120) == 1
        saved, output = last_step(directory), workers.output(1 - lost)
        assert output[-1].startswith(
            f"trainer.train: Lost connection to worker {lost} at localhost:"
        )
        assert output[-1].endswith(
            f"Rerun the same command on all workers to resume from step {saved}."
        )
        assert not any("Traceback" in line for line in output)

    workers = start(train_steps=saved + 5, **settings)
    assert [workers.wait(index) for index in range(WORKERS)] == [0, 0]
    assert f"Training from step {saved} to {saved + 5}." in workers.output(0)
    waiting, training = workers.output(1)
    assert re.fullmatch("Worker 1 of 2 is waiting for the others: localhost:.*", waiting)
    expected = f"Worker 1 of 2: Training from step {saved} to {saved + 5}. Worker 0 prints the"
    assert training == f"{expected} progress."
    assert (directory.checkpoints / f"step-{saved + 5:06d}").is_dir()
    evaluations = json.loads(directory.evaluations_file.read_text())
    assert [entry["step"] for entry in evaluations] == [*range(4, saved + 5, 4), saved + 5][
        : len(evaluations)
    ]
    assert all(entry["bleu"] is not None for entry in evaluations)
    assert_model_equals_last_checkpoint(directory.path)
