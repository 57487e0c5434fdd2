"""What the tests of the benchmarks share."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """Imports a module of the benchmarks, which find each other beside themselves."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def load_module(name):
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load_module


@pytest.fixture(scope="session")
def run():
    """`run(name, *arguments)`: runs a benchmark as a program, without a GPU, and gives what it printed and how it ended."""

    def run_program(name, *arguments):
        command = [sys.executable, str(FOLDER / f"{name}.py"), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        )

    return run_program
