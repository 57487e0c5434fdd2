"""How every program starts: it parses its flags, imports TensorFlow quietly, and then runs.

`--help` must not wait for TensorFlow. At its top, a program therefore imports only modules that
import neither TensorFlow nor Keras. The functions of a program import the others.
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
    values: flags.FlagValues, name: str, kind: type, help: str, default=None, **options
):
    """Defines a flag for values of a Python type, `bool`, `float`, `int`, `list` or `str`.

    Args:
        values: where the flag is defined.
        name: name of the flag.
        kind: the type.
        help: help text.
        default: value if the flag is not given.
        **options: `choices`, all values that the flag may have, or options of absl's definition.
    """
    choices = options.pop("choices", None)
    if choices:
        flags.DEFINE_enum(name, default, choices, help, flag_values=values, **options)
    else:
        _DEFINE[kind](name, default, help, flag_values=values, **options)


def run(
    name: str,
    program: Callable[[flags.FlagValues], None],
    argv: list[str],
    values: flags.FlagValues,
    errors: type[Exception] | tuple[type[Exception], ...] = ValueError,
):
    """Imports TensorFlow and runs a program; `errors` end it with one line on stderr.

    Args:
        name: name of the program, such as `trainer.export`.
        program: takes the parsed flags.
        argv: the command line without its flags.
        values: the parsed flags.
        errors: exceptions whose message is meant for users.
    """
    refuse_arguments(argv)
    import_tensorflow()
    try:
        program(values)
    except errors as error:
        sys.exit(f"{name}: {error}")


def refuse_arguments(argv: list[str]):
    """Raises if the command line has arguments that are not flags."""
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1]!r}.")
