"""Translates lines of text with an exported model.

    python -m trainer.translate --saved_model=saved_models/NAME < source.txt > translation.txt

Needs nothing but TensorFlow and TensorFlow Text: neither the layers nor the program that trained the model.
"""

import contextlib
import os
import sys

# TensorFlow's start-up notes would stand between the warnings that are for the reader.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from absl import app, flags

from trainer.serving import saved_models, translator


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`."""

    def define(kind, *args, **kwargs):
        kind(*args, flag_values=values, **kwargs)

    model = "saved_models/NAME (its latest version) or saved_models/NAME/VERSION."
    define(flags.DEFINE_string, "saved_model", None, model, required=True)
    define(flags.DEFINE_string, "input", "-", "File with one sentence a line; - is the standard input.")
    define(flags.DEFINE_string, "output", "-", "File for one translation a line; - is the standard output.")
    define(flags.DEFINE_integer, "batch_size", 32, "Sentences translated at a time.", lower_bound=1)
    window = "Lines read before the first is answered, sorted by length for speed. On a terminal each is answered at once."
    define(flags.DEFINE_integer, "window", 1024, window, lower_bound=1)


def translate(call: translator.Translator, source, target, batch_size: int, window: int, log=None) -> int:
    """Translates a binary stream of lines into another.

    Args:
        call: translates one batch.
        source, target: binary files. Blank lines stay blank.
        batch_size, window: see `trainer.serving.translator.translate_lines`.
        log: text file for a warning per line of which only the beginning was translated; standard error where omitted.

    Returns:
        The number of lines.
    """
    number = 0
    lines = (line.rstrip(b"\r\n") for line in source)
    for number, answer in enumerate(translator.translate_lines(call, lines, batch_size, window), start=1):
        target.write(translator.one_line(answer.text) + b"\n")
        if answer.truncated:
            warning = f"warning: line {number} is longer than the model takes: only its beginning was translated."
            print(warning, file=log or sys.stderr)
        if number % window == 0:
            target.flush()
    target.flush()
    return number


@contextlib.contextmanager
def _open(path, mode, standard):
    if path == "-":
        yield standard.buffer
        return
    try:
        file = open(path, mode)
    except OSError as error:
        verb = "read" if mode == "rb" else "written"
        raise ValueError(f"Expected a file that can be {verb}. Received: {path} ({error.strerror}).") from error
    with file:
        yield file


def _refuse_same_file(source, target):
    if "-" not in (source, target) and os.path.exists(target) and os.path.samefile(source, target):
        raise ValueError(f"Expected --output to be another file than --input, which it would overwrite. Received: {target}.")


def _run(values):
    with _open(values.input, "rb", sys.stdin) as source:
        _refuse_same_file(values.input, values.output)
        call = saved_models.load(values.saved_model)
        with _open(values.output, "wb", sys.stdout) as target:
            translate(call, source, target, values.batch_size, window=1 if source.isatty() else values.window)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS):
    """Runs the program with parsed flags; `argv` holds what was not a flag."""
    if len(argv) > 1:
        raise app.UsageError(f"Expected the text in --input or on the standard input. Received: {argv[1]!r}.")
    try:
        _run(values)
    except ValueError as error:
        sys.exit(f"trainer.translate: {error}")
    except BrokenPipeError:
        # Whoever read our output has stopped; the interpreter must not fail on flushing what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    define_flags()
    app.run(main)
