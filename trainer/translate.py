"""Translates lines of text with an exported model.

    python -m trainer.translate --saved_model=saved_models/NAME < source.txt > translation.txt
    python -m trainer.translate --saved_model=saved_models/NAME --input=FILE --output=FILE
    python -m trainer.translate --saved_model=saved_models/NAME

Line i of the output is the translation of line i of the input. Only one window of lines is held in
memory. If the input is a terminal, the program prompts for lines. It requires only TensorFlow,
TensorFlow Text and tqdm.

The output is written to FILE.partial, which is renamed to FILE when it is complete. After an
interruption, the same command resumes. An existing FILE is replaced.

    --scores         appends a tab and the score (log-probability divided by the length penalty)
    --nbest=N        writes up to N lines per sentence in the format of Moses and Marian:
                     `number from 0 ||| translation ||| Score= -0.25 ||| -0.25`
    --alignments=F   writes a line of links `i-j` per translation to F: subword j of the translation
                     attends most to subword i of the source. Both count from 0 and exclude EOS
                     (Pharaoh's format, as fast_align and Marian write it).
    --tokens=F       writes these subwords to F: `source ||| translation`
"""

import contextlib
import functools
import sys
import time

from absl import app, flags
from tqdm import tqdm

from trainer import entry_point
from trainer.allocator import keep_freed_memory
from trainer.inference import output_lines, progress, streams
from trainer.inference.resumable_output import HashedLines, resumable_output
from trainer.serving.translator import translate_lines

# Flags that the output depends on.
SETTINGS = ("beam_size", "alpha", "max_length", "nbest", "scores", "batch_size", "window")


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`."""
    define = functools.partial(entry_point.define_flag, values)
    model = "Exported model: saved_models/NAME (its latest version) or saved_models/NAME/VERSION."
    define("saved_model", str, model, required=True)
    help_text = "File with one sentence per line, or a .gz file; - is the standard input."
    define("input", str, help_text, "-")
    help_text = "File to write one translation per line to; - is the standard output."
    define("output", str, help_text, "-")
    define("alignments", str, "Output file of links between subwords, in Pharaoh's format.")
    define("tokens", str, "Output file of the subwords that --alignments refers to.")
    define("scores", bool, "Whether to append a tab and the score to each translation.", False)
    define("resume", bool, "Whether to resume an interrupted run with the same --output.", True)
    help_text = "Exponent of the length penalty. Default: the exported value."
    define("alpha", float, help_text, lower_bound=0.0)
    define = functools.partial(define, flag_type=int, lower_bound=1)
    define("beam_size", help="Hypotheses kept per sentence. Default: the exported value.")
    help_text = "Maximum number of subwords of a translation."
    define("max_length", help=f"{help_text} Default and upper limit: the exported value.")
    help_text = "Translations per sentence, at most the beam size. Default: the best one."
    define("nbest", help=help_text)
    define("batch_size", help="Sentences per batch.", default=32)
    help_text = "Number of lines to read at a time and sort by length for speed."
    define("window", help=help_text, default=1024)


def _line_formatters(values):
    """Returns the functions of `output_lines` that format each output file, by flag."""
    best = output_lines.best_and_score if values.scores else output_lines.best
    best = output_lines.n_best if values.nbest else best
    formatters = {"output": best, "alignments": output_lines.links, "tokens": output_lines.tokens}
    return {name: value for name, value in formatters.items() if values[name].value is not None}


def _check(values):
    """Checks the flags that the model does not check."""
    if values.nbest and values.scores:
        raise ValueError(
            "Expected no --scores with --nbest, whose lines contain scores. Received: both. Leave "
            "--scores out."
        )
    if streams.STANDARD in (values.alignments, values.tokens):
        raise ValueError(
            "Expected --alignments and --tokens to be files. Received: -, the standard output. "
            "Give the path of a file."
        )
    paths = {name: values[name].value for name in ("input", "output", "alignments", "tokens")}
    streams.check_files({name: path for name, path in paths.items() if path is not None})


@contextlib.contextmanager
def _open_outputs(values, paths, lines, fingerprint):
    """Yields output files, the number of lines done, and a function to call after each window.

    The function takes the number of lines that are translated.
    """
    if isinstance(lines, HashedLines) and all(map(streams.can_be_renamed, paths)):
        settings = {name: values[name].value for name in SETTINGS} | {"saved_model": fingerprint}
        with resumable_output(paths, settings, lines, resume=values.resume) as output:
            record = lambda number: output.record_progress(number, lines.digest())
            yield output.files, output.lines_done, record
    else:
        with streams.writing(paths) as files:
            yield files, 0, lambda number: [file.flush() for file in files]


def _translate_stream(values, source, call, fingerprint):
    """Translates a file or a pipe, or lines typed at a terminal."""
    is_typed = source.isatty()
    lines = streams.typed_lines() if is_typed else HashedLines(source)
    window = 1 if is_typed else values.window
    formatters = _line_formatters(values)
    paths = [values[name].value for name in formatters]
    with _open_outputs(values, paths, lines, fingerprint) as (files, done, after_window):
        if done:
            print(f"Resuming after line {done:,} of {values.output}.partial.", file=sys.stderr)
        number, start = done, time.monotonic()
        with progress.progress_bar(source, done, values.output) as bar:
            call = progress.with_progress(call, bar)
            for translations in translate_lines(call, lines, values.batch_size, window):
                number += 1
                for file, format_line in zip(files, formatters.values()):
                    file.write(format_line(number, translations))
                if translations[0].truncated:
                    warning = f"warning: line {number} was truncated to the maximum input length"
                    tqdm.write(f"{warning} of the model.", file=sys.stderr)
                if (number - done) % window == 0:
                    after_window(number)
        seconds = time.monotonic() - start
    if not is_typed:
        print(progress.format_rate(number - done, seconds), file=sys.stderr)


def _run(values):
    _check(values)
    with streams.reading(values.input) as source:
        from trainer.serving import saved_models

        options = {x: values[x].value for x in ("beam_size", "alpha", "max_length", "nbest")}
        aligned = values.alignments is not None or values.tokens is not None
        model = saved_models.load(values.saved_model, **options, aligned=aligned)
        # The first call checks the options and traces the graph, which the rate must not include.
        model.n_best([b"a"])
        fingerprint = saved_models.fingerprint(values.saved_model)
        _translate_stream(values, source, model.n_best, fingerprint)


main = functools.partial(entry_point.run, "trainer.translate", _run)


if __name__ == "__main__":
    keep_freed_memory()
    define_flags()
    app.run(main)
