"""Python programs that run in a separate process."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def environment(**extra):
    """Returns the environment variables of a process that can import this project.

    TensorFlow prints errors only.
    """
    return os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"} | extra


def python_command(*arguments):
    """Returns the command that runs Python with these arguments."""
    return [sys.executable, *map(str, arguments)]


def run_python(*arguments, returncode=0, **options):
    """Runs Python and returns the `CompletedProcess` with the captured output.

    Args:
        *arguments: arguments of Python.
        returncode: expected exit code.
        **options: options of `subprocess.run`. Default: `environment()`, and output as text.
    """
    options = {"env": environment(), "capture_output": True, "text": True} | options
    done = subprocess.run(python_command(*arguments), **options)
    assert done.returncode == returncode, done.stderr
    return done
