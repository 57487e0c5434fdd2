"""Translates lines of text with an exported model.

    python -m trainer.translate --saved_model=saved_models/NAME < source.txt > translation.txt
    python -m trainer.translate --saved_model=saved_models/NAME --input=FILE --output=FILE
    python -m trainer.translate --saved_model=saved_models/NAME

Line i of the output is the translation of line i of the input. Memory holds one window of lines. If
the input is a terminal, there is a prompt. Requires only TensorFlow, TensorFlow Text and tqdm.

A file given as --output is written as FILE.partial and renamed when it is complete. After an
interruption, the same command resumes. A file that is complete is replaced.

    --scores         translation, tab, score (log-probability over the length penalty)
    --nbest=N        up to N lines per sentence, as Moses and Marian write them:
                     `number from 0 ||| translation ||| Score= -0.25 ||| -0.25`
    --alignments=F   writes a line per translation to F: links `i-j`, subword j of the translation
                     attends most to subword i of the source, both from 0 and without the end of the
                     sentence (Pharaoh's format, which fast_align and Marian write)
    --tokens=F       writes these subwords: `source ||| translation`
"""

import contextlib
import os
import signal
import sys
import time

from absl import app, flags
from tqdm import tqdm

from trainer.allocator import keep_freed_memory
from trainer.inference import output_lines, progress, streams
from trainer.inference.unfinished_files import DigestedLines, unfinished_files
from trainer.quiet_start import import_tensorflow
from trainer.serving.translator import translate_lines

# Default and help by name.
STRING_FLAGS = {
    "input": ("-", "File with one sentence a line; - is the standard input."),
    "output": ("-", "File for one translation a line; - is the standard output."),
    "alignments": (None, "File for links between subwords, in Pharaoh's format."),
    "tokens": (None, "File for the subwords that --alignments counts."),
}
BOOLEAN_FLAGS = {
    "scores": (False, "Whether a tab and its score follow each translation."),
    "resume": (True, "Whether to continue with an --output that an interrupted run left."),
}
# At least 1.
INTEGER_FLAGS = {
    "beam_size": (None, "Hypotheses kept per sentence. Default: as exported."),
    "max_length": (
        None,
        "Largest number of subwords of a translation. Default, and limit: as exported.",
    ),
    "nbest": (None, "Translations per sentence, at most the beam size. Default: the best one."),
    "batch_size": (32, "Sentences translated at a time."),
    "window": (1024, "Lines that are read, and sorted by length for speed, at a time."),
}
# Values that the output depends on.
SETTINGS = ("beam_size", "alpha", "max_length", "nbest", "scores", "batch_size", "window")


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`."""
    model = "saved_models/NAME (its latest version) or saved_models/NAME/VERSION."
    flags.DEFINE_string("saved_model", None, model, required=True, flag_values=values)
    alpha = "Exponent of the length penalty. Default: as exported."
    flags.DEFINE_float("alpha", None, alpha, lower_bound=0.0, flag_values=values)
    for name, (default, text) in STRING_FLAGS.items():
        flags.DEFINE_string(name, default, text, flag_values=values)
    for name, (default, text) in BOOLEAN_FLAGS.items():
        flags.DEFINE_boolean(name, default, text, flag_values=values)
    for name, (default, text) in INTEGER_FLAGS.items():
        flags.DEFINE_integer(name, default, text, lower_bound=1, flag_values=values)


def _line_formats(values):
    """Returns the functions of `output_lines` by the flag of the file."""
    best = output_lines.best_and_score if values.scores else output_lines.best
    best = output_lines.n_best if values.nbest else best
    formats = {"output": best, "alignments": output_lines.links, "tokens": output_lines.tokens}
    return {name: form for name, form in formats.items() if values[name].value is not None}


def _check(values):
    """Checks the flags that the model does not check."""
    if values.nbest and values.scores:
        raise ValueError(
            "Expected no --scores with --nbest, whose lines have them. Received: both. Leave "
            "--scores out."
        )
    if streams.STANDARD in (values.alignments, values.tokens):
        raise ValueError(
            "Expected --alignments and --tokens to be files. Received: -, the standard output, "
            "which has the translations."
        )
    paths = {name: values[name].value for name in ("input", "output", "alignments", "tokens")}
    streams.refuse_same_files({name: path for name, path in paths.items() if path is not None})


@contextlib.contextmanager
def _open_outputs(values, paths, lines, fingerprint):
    """Yields output files, the number of lines done, and a function to call after each window."""
    if isinstance(lines, DigestedLines) and all(map(streams.can_be_renamed, paths)):
        settings = {name: values[name].value for name in SETTINGS} | {"saved_model": fingerprint}
        with unfinished_files(paths, settings, lines, values.resume) as output:
            note = lambda number: output.note(number, lines.digest())
            yield output.files, output.lines_done, note
    else:
        with streams.writing(paths) as files:
            yield files, 0, lambda number: [file.flush() for file in files]


def _translate_stream(values, source, call, fingerprint):
    """Translates a stream, or the lines that are typed if it is a terminal."""
    is_typed = source.isatty()
    lines = streams.typed_lines() if is_typed else DigestedLines(source)
    window = 1 if is_typed else values.window
    formats = _line_formats(values)
    paths = [values[name].value for name in formats]
    with _open_outputs(values, paths, lines, fingerprint) as (files, done, after_window):
        if done:
            print(
                f"Resuming after line {done:,}; earlier lines are in {values.output}.partial.",
                file=sys.stderr,
            )
        number, start = done, time.monotonic()
        with progress.progress_bar(source, done, values.output == streams.STANDARD) as bar:
            call = progress.counting(call, bar)
            for translations in translate_lines(call, lines, values.batch_size, window):
                number += 1
                for file, form in zip(files, formats.values()):
                    file.write(form(number, translations))
                if translations[0].truncated:
                    warning = f"warning: line {number} is longer than the model takes: only its"
                    tqdm.write(f"{warning} beginning was translated.", file=sys.stderr)
                if (number - done) % window == 0:
                    after_window(number)
        seconds = time.monotonic() - start
    if not is_typed:
        print(progress.rate(number - done, seconds), file=sys.stderr)


def _run(values):
    _check(values)
    with streams.reading(values.input) as source:
        # `--help` and errors in flags must not wait for TensorFlow.
        import_tensorflow()
        from trainer.serving import saved_models

        names = ("beam_size", "alpha", "max_length", "nbest")
        options = {name: values[name].value for name in names}
        aligned = values.alignments is not None or values.tokens is not None
        model = saved_models.load(values.saved_model, **options, aligned=aligned)
        # The first call prepares the graph, which the rate must not include, and checks options.
        model.n_best([b"a"])
        fingerprint = saved_models.fingerprint(values.saved_model)
        _translate_stream(values, source, model.n_best, fingerprint)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS):
    """Runs the program with parsed flags; `argv` holds the program name only."""
    if len(argv) > 1:
        raise app.UsageError(
            f"Expected the text in --input or on the standard input. Received: {argv[1]!r}."
        )
    try:
        _run(values)
    except ValueError as error:
        sys.exit(f"trainer.translate: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        # The reader of the output has stopped. The interpreter must not fail when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        sys.exit(
            "trainer.translate: Expected a file that can be written. Received: "
            f"{error.filename or values.output} ({error.strerror})."
        )


if __name__ == "__main__":
    keep_freed_memory()
    define_flags()
    app.run(main)
