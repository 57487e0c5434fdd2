"""Programs with absl flags, run in the process of the test."""

import contextlib
import importlib.util

import pytest
from absl import flags
from absl.testing import flagsaver


class Program:
    """An absl program that runs in this process: `program("--flag=value", ...)`.

    Args:
        module: module of the program, with `define_flags` and `main`.
    """

    def __init__(self, module):
        self.module = module

    def __call__(self, *arguments, **flag_values):
        arguments = [*map(str, arguments), *(f"--{k}={v}" for k, v in flag_values.items())]
        values = flags.FlagValues()
        self.module.define_flags(values)
        self.module.main(values([self.module.__name__, *arguments]), values)

    def fails(self, message, *arguments, **flag_values):
        """Asserts that the program exits with a message that matches a regular expression."""
        prefix = self.module.__name__.removesuffix(".__main__").removeprefix("examples.")
        with pytest.raises(SystemExit, match=f"{prefix}: {message}"):
            self(*arguments, **flag_values)


@contextlib.contextmanager
def loaded(name):
    """Context manager: executes a program. At the end, `flags.FLAGS` loses its flags.

    Args:
        name: name of the module. That of a package's program ends with `.__main__`.

    Yields:
        A new module, also if it was imported before.
    """
    spec = importlib.util.find_spec(name)
    module = importlib.util.module_from_spec(spec)
    with flagsaver.flagsaver():
        spec.loader.exec_module(module)
        getattr(module, "define_flags", lambda: None)()
        yield module


def start(name, *arguments):
    """Parses the command line of a program with flags in `flags.FLAGS`, and calls its `main`."""
    with loaded(name) as program:
        program.main(flags.FLAGS([name, *arguments]))
