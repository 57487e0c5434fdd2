"""Translates lines of text with an exported model.

    python -m trainer.translate --saved_model=saved_models/NAME < source.txt > translation.txt
    python -m trainer.translate --saved_model=saved_models/NAME --input=FILE --output=FILE
    python -m trainer.translate --saved_model=saved_models/NAME

Line i of the output is the translation of line i of the input. Only one window of lines is held in
memory; if the input is a terminal, one line, until Ctrl-D. Bytes that are not UTF-8 are read as
U+FFFD, with a warning. The program requires only TensorFlow, TensorFlow Text and tqdm.

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
from collections.abc import Callable, Sequence
from typing import BinaryIO

from absl import app, flags
from tqdm import tqdm

from . import atomic_files, entry_point, streams
from .data.text_report import CountedTranslations
from .serving.translator import Translation, one_line, translate_lines

# The separator of fields. Inside a text, it is written with spaces.
_SEPARATOR = b"|||"


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


def format_best(number: int, translations: Sequence[Translation]) -> bytes:
    """Returns the best translation."""
    return one_line(translations[0].text) + b"\n"


def format_best_and_score(number: int, translations: Sequence[Translation]) -> bytes:
    """Returns the best translation, a tab, and its score."""
    # A tab inside the text would make a third column.
    text = one_line(translations[0].text).replace(b"\t", b" ")
    return text + b"\t%.4f\n" % translations[0].score


def format_n_best(number: int, translations: Sequence[Translation]) -> bytes:
    """Returns all translations in the format of Moses, with sentence numbers from 0."""
    row = b"%d ||| %s ||| Score= %.4f ||| %.4f\n"
    texts = [one_line(each.text).replace(_SEPARATOR, b"| | |") for each in translations]
    return b"".join(
        row % (number - 1, text, each.score, each.score) for text, each in zip(texts, translations)
    )


def format_links(number: int, translations: Sequence[Translation]) -> bytes:
    """Returns a line of links `i-j` in Pharaoh's format per translation.

    A link means that target token j attends most to source token i.
    """
    return b"".join(
        b" ".join(b"%d-%d" % (i, j) for j, i in enumerate(each.alignment.sources)) + b"\n"
        for each in translations
    )


def format_tokens(number: int, translations: Sequence[Translation]) -> bytes:
    """Returns the subwords that `format_links` refers to, in the format that fast_align reads."""
    sides = ((each.alignment.source_tokens, each.alignment.target_tokens) for each in translations)
    return b"".join(
        b"%s ||| %s\n" % tuple(b" ".join(map(_one_word, side)) for side in pair) for pair in sides
    )


# SentencePiece's symbol for a space.
_SPACE = "▁".encode()


def _one_word(token):
    """Replaces spaces and separators in a token, so that token n is word n of the line."""
    token = token.replace(_SEPARATOR, b"| | |").replace(b" ", _SPACE)
    return token.translate(None, b"\r\n") or _SPACE


def progress_bar(source: BinaryIO, output: str) -> tqdm:
    """Returns a progress bar on stderr that counts translated sentences.

    It is shown only if stderr is a terminal, and neither input nor output is one.
    """
    is_interactive = source.isatty() or (output == streams.STANDARD and sys.stdout.isatty())
    is_shown = sys.stderr.isatty() and not is_interactive
    total = streams.count_lines(source) if is_shown else None
    return tqdm(total=total, unit=" sentences", disable=not is_shown, dynamic_ncols=True)


def with_progress(call: Callable[[list], list], bar: tqdm) -> Callable[[list], list]:
    """Returns `call` with a bar that each call advances by the number of its results."""

    def call_and_count(sentences):
        results = call(sentences)
        bar.update(len(results))
        return results

    return call_and_count


def format_rate(count: int, seconds: float) -> str:
    """Returns a status line with the number of sentences, the time and the rate."""
    rate = count / max(seconds, 1e-9)
    shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
    return (
        f"{count:,} sentences in {seconds:,.1f} s: {shown} sentences per second, excluding model "
        "loading"
    )


def _line_formatters(values):
    """Returns the functions that format a translated line for each output file, by flag."""
    best = format_best_and_score if values.scores else format_best
    best = format_n_best if values.nbest else best
    formatters = {"output": best, "alignments": format_links, "tokens": format_tokens}
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
        if name != "input":
            atomic_files.check_writable(path)


def _warn_of_invalid_bytes(lines):
    """Yields lines. Warns of the first one that is not UTF-8, and at the end of their number."""
    count = 0
    for number, line in enumerate(lines, start=1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            count += 1
            if count == 1:
                received = f"invalid bytes {line[error.start : error.end]!r} in line {number}"
                warning = f"warning: expected UTF-8 text. Received: {received}, read as U+FFFD."
                streams.report(warning)
        yield line
    if count > 1:
        streams.report(f"warning: {count:,} lines are not UTF-8 text.")


def _translate_stream(values, source, call):
    """Translates a file, a pipe, or lines typed at a terminal, each of them at once."""
    is_typed = source.isatty()
    lines = _warn_of_invalid_bytes(streams.lines(source, values.input))
    window = 1 if is_typed else values.window
    formatters = _line_formatters(values)
    with streams.writing([values[name].value for name in formatters]) as write:
        number, start = 0, time.monotonic()
        with progress_bar(source, values.output) as bar:
            translate = with_progress(call, bar)
            for translations in translate_lines(translate, lines, values.batch_size, window):
                number += 1
                texts = [line_of(number, translations) for line_of in formatters.values()]
                write(texts, flush=number % window == 0)
                if translations[0].truncated:
                    warning = f"warning: line {number} was truncated to the maximum input length"
                    streams.report(f"{warning} of the model.")
                if not translations[0].complete:
                    warning = f"warning: the translation of line {number} was cut at the maximum"
                    streams.report(f"{warning} length of the output.")
        seconds = time.monotonic() - start
    if not is_typed:
        streams.report(*call.describe(), format_rate(number, seconds))


def _run(values):
    _check(values)
    with streams.reading(values.input) as source:
        from .serving import model_versions

        options = {x: values[x].value for x in ("beam_size", "alpha", "max_length", "nbest")}
        aligned = values.alignments is not None or values.tokens is not None
        model = model_versions.load(values.saved_model, **options, aligned=aligned)
        # The first call checks the options and traces the graph, which the rate must not include.
        model.n_best([b"a"])
        call = CountedTranslations(model.n_best, getattr(model, "owner", None))
        _translate_stream(values, source, call)


main = functools.partial(entry_point.run, "trainer.translate", _run)


if __name__ == "__main__":
    define_flags()
    app.run(main, flags_parser=entry_point.parse_flags)
