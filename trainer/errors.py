"""The ends of all programs: exit codes, and errors as one line on the standard error.

0          the program has completed
1          an error: of the command line, of settings and data, or of a file
2          a package is not installed
128 + N    signal N, such as 130 after Ctrl-C
"""

import contextlib
import errno
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator

from . import streams

# Starts of lines that locate the operation of an error.
_LOCATIONS = ("Graph execution error", "Detected at", "File ", "[[", "Additional GRPC", ":UNKNOWN")
_LOCATIONS += ("<stack traces", "Original stack trace")
_LONGEST_MESSAGE = 300
# The programs `python -m trainer.NAME`.
PROGRAMS = (
    *("train", "evaluate", "export", "translate", "visualize"),
    *("average", "export_ctranslate2", "import_t2t"),
)
_PROGRAM_NAME = re.compile(
    rf"(?<![\w./])(python -m )?trainer\.(NAME|{'|'.join(PROGRAMS)})\b(?!\.\w)"
)
# The extra of setup.cfg that installs a package.
EXTRAS = {"ctranslate2": "ctranslate2", "plotly": "visualize"} | dict.fromkeys(
    (
        *("absl", "filelock", "importlib_resources", "sacrebleu", "sacremoses", "sentencepiece"),
        *("tensorboard", "tensorflow", "tensorflow_datasets", "tensorflow_text", "tqdm"),
    ),
    "trainer",
)
_is_console_script = False


def set_console_script():
    """Makes `as_started` write the names of console scripts."""
    global _is_console_script
    _is_console_script = True


def as_started(text: str) -> str:
    """Returns a text in which programs have the names by which the user starts them.

    Texts are written with `python -m trainer.NAME` and `trainer.NAME`. An installed package is
    `t2t_relpos.trainer`, and its console scripts are `relpos-NAME`.
    """

    def rename(match):
        python, program = match.groups(default="")
        if _is_console_script:
            return f"relpos-{program.replace('_', '-')}"
        return f"{python}{__package__}.{program}"

    return _PROGRAM_NAME.sub(rename, text)


@contextlib.contextmanager
def printing_results(name: str) -> Iterator[None]:
    """Runs the block to its end, also if writing to the standard output fails.

    If the reader of the output has exited, further lines are dropped. After other errors, they go
    to the standard error, and the program ends with one line of explanation and the exit code 1.
    """
    with streams.as_results() as results:
        yield
    if results.has_failed:
        reason = getattr(results.error, "strerror", None) or results.error
        sys.exit(
            f"{as_started(name)}: Expected the standard output to be writable. Received: {reason}. "
            "The program has completed, and its output is above, on the standard error."
        )


@contextlib.contextmanager
def errors_as_exit_codes(
    name: str, errors: tuple = (ValueError,), remedy: Callable[[], str] = lambda: ""
) -> Iterator[None]:
    """Ends the program with one line on stderr, without a traceback, if the block raises an error.

    The exit code is 1 for errors, 2 if a package of `EXTRAS` is not installed, and that of
    `exit_interrupted` after Ctrl-C. Errors that are neither OSErrors nor listed in `errors` keep
    their traceback. `remedy` returns what to do after an interruption or an OSError.
    """
    try:
        yield
    except errors as error:
        sys.exit(as_started(f"{name}: {error}"))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        exit_incomplete(name, package)
    except OSError as error:
        sys.exit(as_started(f"{name}: {_describe(error, remedy())}"))
    except KeyboardInterrupt:
        exit_interrupted(name, signal.SIGINT, remedy())


def exit_interrupted(name: str, received: signal.Signals, remedy: str):
    """Ends the program with the exit code by which shells report a signal."""
    print(as_started(f"\n{name}: interrupted. {remedy}".rstrip()), file=sys.stderr)
    sys.exit(128 + received)


def exit_incomplete(name: str, package: str):
    """Ends the program with the command that installs a missing package."""
    print(
        as_started(f"{name}: Expected the package {package}. Received: an environment without it. ")
        + f"Install it: pip install 't2t-relpos[{EXTRAS[package]}]'.",
        file=sys.stderr,
    )
    sys.exit(2)


def _describe(error, remedy):
    received = error if error.filename is None else f"{error.filename} ({error.strerror})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
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
