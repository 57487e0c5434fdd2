"""Fixtures for tests of the benchmarks."""

import csv
import subprocess
import sys

import pytest

from benchmarks.common.worker_processes import ROOT, child_environment


@pytest.fixture(scope="session")
def run():
    """Returns `run(name, *flags)`: runs `python -m benchmarks.NAME`, returns a CompletedProcess."""

    def run_benchmark(name, *flags):
        environment = child_environment() | {"CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-m", f"benchmarks.{name}", *flags]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)

    return run_benchmark


@pytest.fixture(scope="session")
def run_table(run):
    """Returns `run_table(name, *flags)`: runs a benchmark, returns the cells it prints."""

    def run_benchmark(name, *flags):
        result = run(name, *flags)
        assert result.returncode == 0, result.stderr
        return [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in result.stdout.splitlines()
            if line.startswith("| ") and "---" not in line
        ]

    return run_benchmark


@pytest.fixture(scope="session")
def usage_error(run):
    """Returns `usage_error(name, *flags)`: runs a benchmark that must fail, returns its output."""

    def run_benchmark(name, *flags):
        result = run(name, *flags)
        assert result.returncode == 1
        return " ".join((result.stdout + result.stderr).split())

    return run_benchmark


@pytest.fixture(scope="session")
def read_csv():
    """Returns `read_csv(path)`, which returns the rows of a CSV file as dicts of strings."""

    def read(path):
        with open(path, newline="") as file:
            return list(csv.DictReader(file))

    return read
