"""Programs with absl flags, run in the process of the test."""

import pytest
from absl import flags


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
