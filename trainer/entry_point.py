"""The common entry point of all programs: parse flags, import TensorFlow quietly, run.

`--help` must not wait for TensorFlow. The top level of a program therefore imports only modules
that import neither TensorFlow nor Keras. All other modules are imported inside functions.
"""

import sys
from collections.abc import Callable

from absl import app, flags

from trainer.quiet_start import import_tensorflow

# The flags belong to the program that defines them, so that its --help lists them.
flags.disclaim_key_flags()

_DEFINE = {
    bool: flags.DEFINE_bool,
    float: flags.DEFINE_float,
    int: flags.DEFINE_integer,
    list: flags.DEFINE_list,
    str: flags.DEFINE_string,
}


def define_flag(
    values: flags.FlagValues, name: str, flag_type: type, help: str, default=None, **options
):
    """Defines an absl flag by its Python type.

    Args:
        values: the `FlagValues` to define the flag in.
        name: name of the flag.
        flag_type: `bool`, `float`, `int`, `list` or `str`.
        help: help text.
        default: default value.
        **options: `choices`, the allowed values, or further arguments of absl's `DEFINE_*`.
    """
    choices = options.pop("choices", None)
    if choices:
        flags.DEFINE_enum(name, default, choices, help, flag_values=values, **options)
    else:
        _DEFINE[flag_type](name, default, help, flag_values=values, **options)


def run(
    name: str,
    program: Callable[[flags.FlagValues], None],
    argv: list[str],
    values: flags.FlagValues = flags.FLAGS,
    errors: type[Exception] | tuple[type[Exception], ...] = ValueError,
):
    """Imports TensorFlow and runs a program.

    Args:
        name: name of the program, such as `trainer.export`.
        program: function of the parsed flags.
        argv: the command line without its flags.
        values: the parsed flags. By default those of the command line.
        errors: exceptions to report to the user as one line on stderr, without a traceback.
    """
    reject_arguments(argv)
    import_tensorflow()
    try:
        program(values)
    except errors as error:
        sys.exit(f"{name}: {error}")


def reject_arguments(argv: list[str]):
    """Raises UsageError if the command line has arguments that are not flags."""
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1]!r}.")
