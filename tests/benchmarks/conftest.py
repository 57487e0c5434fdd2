"""Fixtures of the benchmarks' tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def run():
    """`run(name, *flags)` runs the benchmark `benchmarks.NAME` and returns its CompletedProcess."""

    def run_benchmark(name, *flags):
        command = [sys.executable, "-m", f"benchmarks.{name}", *flags]
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)

    return run_benchmark
