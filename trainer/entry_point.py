"""The start of all programs: flags, and TensorFlow's import. Their ends are in `errors.py`.

`--help` must not wait for TensorFlow. The top level of a program therefore imports only modules
that import neither TensorFlow nor Keras. All other modules are imported inside functions.
"""

import contextlib
import functools
import importlib
import logging
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

from absl import app, flags
from absl import logging as absl_logging

from . import t2t_flags
from .errors import PROGRAMS, as_installed, errors_as_exit_codes

# The flags belong to the program that defines them, so that its --help lists them.
flags.disclaim_key_flags()
# What to do instead of giving a flag that a program does not have.
_REMEDIES = {
    "model_dir": "The program reads an exported model: run `python -m trainer.export "
    "--model_dir=...`, then give --saved_model=saved_models/NAME.",
    "saved_model": "The program reads a model directory: give the exported one.",
    "checkpoint": "Write the checkpoint to a new model directory, `python -m trainer.average "
    "--model_dir=... --steps=... --output_dir=...`, then give that directory.",
}


class _OneOrTwoIntegers(flags.ArgumentParser):
    """Parses "16" as 16, and "64,8" as (64, 8)."""

    syntactic_help = "an integer, or two: LEFT,RIGHT"

    def parse(self, argument):
        if not isinstance(argument, str):
            return argument
        try:
            numbers = tuple(map(flags.IntegerParser().convert, argument.split(",")))
        except ValueError:
            numbers = ()
        if len(numbers) not in (1, 2):
            raise ValueError(f"Expected {self.syntactic_help}. Received: {argument!r}.")
        return numbers if len(numbers) == 2 else numbers[0]

    def flag_type(self):
        return "int or int,int"


_DEFINE = {
    bool: flags.DEFINE_bool,
    float: flags.DEFINE_float,
    int: flags.DEFINE_integer,
    int | tuple: functools.partial(flags.DEFINE, _OneOrTwoIntegers()),
    list: flags.DEFINE_list,
    str: flags.DEFINE_string,
}


def define_flag(
    values: flags.FlagValues, name: str, flag_type: type, help: str, default=None, **options
):
    """Defines a flag by its type, a key of `_DEFINE`. `options` are those of absl, or `choices`."""
    help = as_installed(help)
    choices = options.pop("choices", None)
    if choices:
        flags.DEFINE_enum(name, default, choices, help, flag_values=values, **options)
    else:
        _DEFINE[flag_type](name, default, help, flag_values=values, **options)


def parse_flags(argv: list[str]) -> list[str]:
    """Returns the command line without the flags, which are parsed, for `app.run`.

    Exits with a message if a flag is unknown or invalid.
    """
    # absl prints this text for --help.
    program = sys.modules["__main__"]
    program.__doc__ = as_installed(program.__doc__ or "")
    with errors_as_exit_codes(_name(argv)):
        try:
            return flags.FLAGS(argv)
        except flags.UnrecognizedFlagError as error:
            sys.exit(_describe_unknown(error.flagname, argv))
        except flags.Error:
            return app.parse_flags_with_usage(argv)  # Prints the error.


def _name(argv):
    return f"trainer.{Path(argv[0]).stem}"


def _describe_unknown(flag, argv):
    """Returns the error of a flag that a program does not have."""
    own = [own.name for own in flags.FLAGS.get_flags_for_module(argv[0])]
    given = [each.lstrip("-").partition("=")[0] for each in argv[1:] if each.startswith("-")]
    replaced = t2t_flags.replacements(Path(argv[0]).stem, given, own)
    if flag in replaced:
        return as_installed(t2t_flags.describe(_name(argv), replaced))
    similar = _most_similar(flag, own)
    others = [name for name in PROGRAMS if flag in _flags_of(name)]
    remedy = _REMEDIES.get(flag)
    if remedy is None:
        remedy = f"It is a flag of {', '.join(others)}. " if others else ""
        remedy += f"Did you mean --{similar}?" if similar else "Flags are listed by --help."
    name = _name(argv)
    return as_installed(f"{name}: Expected flags of {name}. Received: --{flag}. {remedy}")


def _most_similar(flag, names):
    """Returns the flag that a misspelled one stands for, or None, also without the library."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("t2t_relpos._suggestions").most_similar(flag, names)


def _flags_of(program):
    """Returns the names of a program's flags, or none if its requirements are not installed."""
    values = flags.FlagValues()
    with contextlib.suppress(ImportError):
        importlib.import_module(f"{__package__}.{program}").define_flags(values)
    return {*values}


def run(
    name: str,
    program: Callable[[flags.FlagValues], None],
    argv: list[str],
    values: flags.FlagValues = flags.FLAGS,
):
    """Imports TensorFlow and runs a program, with `errors_as_exit_codes`.

    `argv` is the command line without its flags.
    """
    reject_arguments(argv)
    with errors_as_exit_codes(name):
        import_tensorflow()
        program(values)


def run_console_script():
    """Runs the program of the console script relpos-NAME, as `python -m trainer.NAME` does."""
    name = Path(sys.argv[0]).stem.removeprefix("relpos-").replace("-", "_")
    # With --help, absl lists the flags of the module __main__.
    runpy.run_module(f"{__package__}.{name}", run_name="__main__", alter_sys=True)


def reject_arguments(argv: list[str]):
    """Raises UsageError if the command line has arguments that are not flags."""
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1]!r}.")


def import_tensorflow():
    """Imports TensorFlow with few messages. `--verbosity=1` on the command line shows all.

    Warnings that programs log later have the format `LEVEL: message`.
    """
    # absl's default format starts with a time, a thread id and a line of code.
    absl_logging.get_absl_handler().setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    # At level 2, oneDNN logs an error when it falls back to another implementation for int64.
    if not {"--verbosity=1", "-v=1"} & set(sys.argv):
        if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2") == "2":
            os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow  # noqa: F401
