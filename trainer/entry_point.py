"""The common entry point of all programs: parse flags, import TensorFlow quietly, run.

`--help` must not wait for TensorFlow. The top level of a program therefore imports only modules
that import neither TensorFlow nor Keras. All other modules are imported inside functions.
"""

import errno
import signal
import sys
from collections.abc import Callable

from absl import app, flags

from trainer import standard_streams
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
):
    """Imports TensorFlow and runs a program.

    ValueError, OSError and Ctrl-C end the program with one line on stderr, without a traceback. If
    the reader of the output has exited, the program ends without an error. A standard error that
    can't be written is ignored.

    Args:
        name: name of the program, such as `trainer.export`.
        program: function of the parsed flags.
        argv: the command line without its flags.
        values: the parsed flags. By default those of the command line.
    """
    reject_arguments(argv)
    standard_streams.prepare()
    with standard_streams.as_logs("stderr"):
        try:
            import_tensorflow()
            program(values)
            if sys.stdout is not None:
                sys.stdout.flush()
        except BrokenPipeError:
            pass
        except ValueError as error:
            sys.exit(f"{name}: {error}")
        except OSError as error:
            sys.exit(f"{name}: {_describe(error)}")
        except KeyboardInterrupt:
            print(f"\n{name}: interrupted.", file=sys.stderr)
            sys.exit(128 + signal.SIGINT)
        finally:
            standard_streams.flush_or_discard(sys.stdout)


def _describe(error):
    file = error.filename
    if file is None and not standard_streams.flush_or_discard(sys.stdout):
        file = "the standard output"
    received = error if file is None else f"{file} ({error.strerror})"
    remedy = " Free space, then run the same command again."
    remedy = remedy if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"Expected a file that can be read or written. Received: {received}.{remedy}"


def reject_arguments(argv: list[str]):
    """Raises UsageError if the command line has arguments that are not flags."""
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1]!r}.")
