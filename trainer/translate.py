"""Translates lines of text with an exported model.

    python -m trainer.translate --saved_model=saved_models/NAME < source.txt > translation.txt
    python -m trainer.translate --saved_model=saved_models/NAME --input=FILE --output=FILE
    python -m trainer.translate --saved_model=saved_models/NAME

Line i of the output is the translation of line i of the input. Only one window of lines is held in
memory. If the input is a terminal, the program prompts for lines. It requires only TensorFlow,
TensorFlow Text and tqdm.

FILE appears when it is complete. An existing FILE is replaced. On a terminal, a progress bar shows
the number of translated sentences. To interrupt and continue long translations, split the input,
for example with `split --lines=100000`.

    --scores         appends a tab and the score (log-probability divided by the length penalty)
    --nbest=N        writes up to N lines per sentence in the format of Moses and Marian:
                     `number from 0 ||| translation ||| Score= -0.25 ||| -0.25`
    --alignments=F   writes a line of links `i-j` per translation to F: subword j of the translation
                     attends most to subword i of the source. Both count from 0 and exclude EOS
                     (Pharaoh's format, as fast_align and Marian write it).
    --tokens=F       writes these subwords to F: `source ||| translation`
"""

import functools
import sys
import time

from absl import app, flags
from tqdm import tqdm

from trainer import atomic_files, entry_point
from trainer.allocator import keep_freed_memory
from trainer.data.text_report import CountedTranslations
from trainer.inference import output_lines, progress, streams
from trainer.serving.translator import translate_lines


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
    paths = {name: path for name, path in paths.items() if path is not None}
    streams.check_files(paths)
    for name, path in paths.items():
        if name != "input" and path != streams.STANDARD:
            atomic_files.check_writable(path)


def _translate_stream(values, source, call):
    """Translates a file or a pipe, or lines typed at a terminal."""
    is_typed = source.isatty()
    lines = streams.typed_lines() if is_typed else streams.lines(source, values.input)
    window = 1 if is_typed else values.window
    formatters = _line_formatters(values)
    with streams.writing([values[name].value for name in formatters]) as files:
        number, start = 0, time.monotonic()
        with progress.progress_bar(source, values.output) as bar:
            translate = progress.with_progress(call, bar)
            for translations in translate_lines(translate, lines, values.batch_size, window):
                number += 1
                for file, format_line in zip(files, formatters.values()):
                    file.write(format_line(number, translations))
                if translations[0].truncated:
                    warning = f"warning: line {number} was truncated to the maximum input length"
                    tqdm.write(f"{warning} of the model.", file=sys.stderr)
                if number % window == 0:
                    for file in files:
                        file.flush()
        seconds = time.monotonic() - start
    if not is_typed:
        report = *call.describe(), progress.format_rate(number, seconds)
        print(*report, sep="\n", file=sys.stderr)


def _run(values):
    _check(values)
    with streams.reading(values.input) as source:
        from trainer.serving import saved_models

        options = {x: values[x].value for x in ("beam_size", "alpha", "max_length", "nbest")}
        aligned = values.alignments is not None or values.tokens is not None
        model = saved_models.load(values.saved_model, **options, aligned=aligned)
        # The first call checks the options and traces the graph, which the rate must not include.
        model.n_best([b"a"])
        call = CountedTranslations(model.n_best, getattr(model, "owner", None))
        _translate_stream(values, source, call)


main = functools.partial(entry_point.run, "trainer.translate", _run)


if __name__ == "__main__":
    keep_freed_memory()
    define_flags()
    app.run(main)
