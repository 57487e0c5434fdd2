"""The ends of all programs: exit codes, and errors as one line on the standard error.

0          the program has completed, or the reader of its standard output has exited
1          an error: of the command line, of settings and data, or of a file
2          a package is not installed
128 + N    signal N, such as 130 after Ctrl-C
"""

import contextlib
import errno
import os
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator

from . import streams
from .atomic_files import STANDARD, STANDARD_OUTPUT, naming

# Starts of lines that locate the operation of an error.
_LOCATIONS = ("Graph execution error", "Detected at", "File ", "[[", "Additional GRPC", ":UNKNOWN")
_LOCATIONS += ("<stack traces", "Original stack trace")
_LONGEST_MESSAGE = 300
# The programs `python -m trainer.NAME`.
PROGRAMS = (
    *("train", "evaluate", "export", "translate", "visualize"),
    *("average", "export_ctranslate2", "import_t2t"),
)
# The extra of setup.cfg that installs a package.
EXTRAS = {"ctranslate2": "ctranslate2", "plotly": "visualize"} | dict.fromkeys(
    (
        *("absl", "filelock", "importlib_resources", "sacrebleu", "sacremoses", "sentencepiece"),
        *("tensorboard", "tensorflow", "tensorflow_datasets", "tensorflow_text", "tqdm"),
    ),
    "trainer",
)


def as_installed(text: str) -> str:
    """Returns a text whose commands `python -m trainer.NAME` work in the installed package too."""
    return text.replace("python -m trainer", f"python -m {__package__}")


@contextlib.contextmanager
def errors_as_exit_codes(
    name: str, errors: tuple = (ValueError,), remedy: Callable[[], str] = lambda: ""
) -> Iterator[None]:
    """Ends the program with one line on stderr, without a traceback, if the block raises an error.

    The exit code is 1 for errors, 2 if a package of `EXTRAS` is not installed, and that of
    `exit_interrupted` after Ctrl-C. If the reader of the standard output has exited, it is 0, so
    print after all files are written. Errors that are neither OSErrors nor listed in `errors` keep
    their traceback. `remedy` returns what to do after an interruption or an OSError.
    """
    streams.prepare()
    try:
        yield
        with naming(STANDARD):
            sys.stdout.flush()
    except errors as error:
        sys.exit(as_installed(f"{name}: {error}"))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        exit_incomplete(name, package)
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:
        sys.exit(as_installed(f"{name}: {_describe(error, remedy())}"))
    except KeyboardInterrupt:
        exit_interrupted(name, signal.SIGINT, remedy())
    finally:
        for stream in (sys.stdout, sys.stderr):
            streams.flush_or_discard(stream)


def exit_interrupted(name: str, received: signal.Signals, remedy: str):
    """Ends the program with the exit code by which shells report a signal."""
    _report_interrupted(name, remedy)
    sys.exit(128 + received)


def end_at_once(name: str, received: signal.Signals, remedy: str):
    """Ends the process as `exit_interrupted`, from any thread and without cleaning up.

    Python's exit would wait for the operation of the main thread.
    """
    _report_interrupted(name, remedy)
    os._exit(128 + received)


def _report_interrupted(name, remedy):
    streams.report(f"\n{name}: interrupted. {remedy}".rstrip())


def exit_incomplete(name: str, package: str):
    """Ends the program with the command that installs a missing package."""
    streams.report(
        f"{name}: Expected the package {package}. Received: an environment without it. "
        f"Install it: pip install 't2t-relpos[{EXTRAS[package]}]'."
    )
    sys.exit(2)


def _describe(error, remedy):
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    # `atomic_files` names all files. `print` names none.
    file = STANDARD_OUTPUT if is_full and error.filename is None else error.filename
    received = error if file is None else f"{file} ({error.strerror})"
    if is_full:
        remedy = f". {remedy}" if remedy else ", then run the same command again."
        remedy = f"Free space{remedy}"
    elif error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
        remedy = "Check the path."
    message = f"Expected a file that can be read or written. Received: {received}. {remedy}"
    return message.rstrip()


def plain_message(error) -> str:
    """Returns the message of a `tf.errors.OpError` as one line, without the location of the op."""
    failed = re.search(r"assertion failed: (.*)", error.message)
    if failed is not None:
        return " ".join(re.findall(r"\[([^\[\]]*)\]", failed.group(1)))
    names = r"\{\{.*?\}\}|\[Op:.*?\]( name: *$)?"
    lines = [re.sub(names, "", line).strip() for line in error.message.splitlines()]
    causes = [line for line in lines if line and not line.startswith(_LOCATIONS)]
    return textwrap.shorten(" ".join(causes), _LONGEST_MESSAGE, placeholder=" ...")
