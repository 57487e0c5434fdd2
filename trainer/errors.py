"""The ends of all programs: exit codes, and errors as one line on the standard error.

0          the program has completed
1          an error: of the command line, of settings and data, or of a file; a missing requirement
128 + N    signal N, such as 130 after Ctrl-C
"""

import contextlib
import errno
import re
import signal
import sys
from collections.abc import Callable, Iterator

from . import streams

# Starts of lines that locate the operation of an error.
_LOCATIONS = ("Graph execution error", "Detected at", "File ", "[[", "Additional GRPC", ":UNKNOWN")
_LOCATIONS += ("<stack traces", "Original stack trace")
_LONGEST_MESSAGE = 300


@contextlib.contextmanager
def printing_results(name: str) -> Iterator[None]:
    """Runs the block to its end, although the standard output can't be written.

    If its reader has exited, lines are dropped. After other errors, lines go to the standard error,
    and the program ends with one line there and the exit code 1.

    Args:
        name: name of the program, such as `trainer.export`.
    """
    with streams.as_results() as results:
        yield
    if results.has_failed:
        reason = getattr(results.error, "strerror", None) or results.error
        sys.exit(
            f"{name}: Expected the standard output to be writable. Received: {reason}. The program "
            "has completed, and its output is above, on the standard error."
        )


@contextlib.contextmanager
def errors_as_exit_codes(
    name: str, errors: tuple = (ValueError,), remedy: Callable[[], str] = lambda: ""
) -> Iterator[None]:
    """Ends the program with one line on stderr, without a traceback, if the block raises an error.

    The exit code is 1 for errors, and that of `exit_interrupted` after Ctrl-C.

    Args:
        name: name of the program, such as `trainer.export`.
        errors: classes of errors in addition to OSError. Other errors have a traceback.
        remedy: function that returns what to do after an interruption or an OSError.
    """
    try:
        yield
    except errors as error:
        sys.exit(f"{name}: {error}")
    except OSError as error:
        sys.exit(f"{name}: {_describe(error, remedy())}")
    except KeyboardInterrupt:
        exit_interrupted(name, signal.SIGINT, remedy())


def exit_interrupted(name: str, received: signal.Signals, remedy: str):
    """Ends the program with the exit code by which shells report a signal."""
    print(f"\n{name}: interrupted. {remedy}".rstrip(), file=sys.stderr)
    sys.exit(128 + received)


def _describe(error, remedy):
    received = error if error.filename is None else f"{error.filename} ({error.strerror})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = f". {remedy}" if remedy else ", then run the same command again."
        remedy = f"Free space{remedy}"
    elif error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
        remedy = "Check the path."
    message = f"Expected a file that can be read or written. Received: {received}. {remedy}"
    return message.rstrip()


@contextlib.contextmanager
def requiring(package: str, extra: str) -> Iterator[None]:
    """Raises ValueError, with the command that installs it, if the block finds no package.

    Args:
        package: name of the package.
        extra: the extra of setup.cfg that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise ValueError(
            f"Expected the package {package}. Received: an environment without it. Install it: "
            f"pip install 't2t-relpos[{extra}]'."
        ) from error


def plain_message(error) -> str:
    """Returns the message of a `tf.errors.OpError` as one line, without the location of the op."""
    failed = re.search(r"assertion failed: (.*)", error.message)
    if failed is not None:
        return " ".join(re.findall(r"\[([^\[\]]*)\]", failed.group(1)))
    names = r"\{\{.*?\}\}|\[Op:.*?\]( name: *$)?"
    lines = [re.sub(names, "", line).strip() for line in error.message.splitlines()]
    causes = [line for line in lines if line and not line.startswith(_LOCATIONS)]
    return " ".join(causes)[:_LONGEST_MESSAGE]
