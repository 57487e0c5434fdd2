"""Translates lines of text with an exported model.

    python -m trainer.translate --saved_model=saved_models/NAME < source.txt > translation.txt
    python -m trainer.translate --saved_model=saved_models/NAME --input=source.txt \
        --output=translation.txt
    python -m trainer.translate --saved_model=saved_models/NAME

Line i of the output is the translation of line i of the input. Memory holds one window of lines.
Where the input is a terminal, there is a prompt. Needs nothing but TensorFlow, TensorFlow Text and
tqdm: neither the layers nor the program that trained the model.

A file given as --output is written as FILE.partial and gets its name when it is complete. A run
that was stopped, or killed, is resumed by the same command; one that was complete is done
again, and replaces what was there.

    --scores         translation, tab, score (log-probability over the length penalty)
    --nbest=N        up to N lines per sentence, as Moses and Marian write them:
                     `number from 0 ||| translation ||| Score= -0.25 ||| -0.25`
    --alignments=F   a line per translation in F: links `i-j`, subword j of the translation attends
                     most to i of the source, both from 0 and without the end of the sentence
                     (Pharaoh's format, which fast_align and Marian write)
    --tokens=F       those subwords: `source ||| translation`
"""

import contextlib
import math
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence

from absl import app, flags

from trainer.allocator import keep_freed_memory
from trainer.inference import prompt, streams
from trainer.inference.progress import Progress
from trainer.inference.unfinished_files import DigestedLines, unfinished_files
from trainer.quiet_start import import_tensorflow


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`."""

    def define(kind, *args, **kwargs):
        kind(*args, flag_values=values, **kwargs)

    model = "saved_models/NAME (its latest version) or saved_models/NAME/VERSION."
    define(flags.DEFINE_string, "saved_model", None, model, required=True)
    define(
        flags.DEFINE_string, "input", "-", "File with one sentence a line; - is the standard input."
    )
    define(
        flags.DEFINE_string,
        "output",
        "-",
        "File for one translation a line; - is the standard output.",
    )
    define(
        flags.DEFINE_integer,
        "beam_size",
        None,
        "Hypotheses kept per sentence. Default: as exported.",
        lower_bound=1,
    )
    define(
        flags.DEFINE_float,
        "alpha",
        None,
        "Exponent of the length penalty. Default: as exported.",
        lower_bound=0.0,
    )
    longest = (
        "Subwords that a translation may have, with the end of the sentence. Default, and most: "
        "as exported."
    )
    define(flags.DEFINE_integer, "max_length", None, longest, lower_bound=1)
    best = (
        "Translations per sentence, at most the beam size, listed as Moses does. Default: the "
        "best one."
    )
    define(flags.DEFINE_integer, "nbest", None, best, lower_bound=1)
    define(
        flags.DEFINE_boolean,
        "scores",
        False,
        "Whether a tab and its score follow each translation.",
    )
    define(
        flags.DEFINE_string,
        "alignments",
        None,
        "File for links between subwords, in Pharaoh's format.",
    )
    define(flags.DEFINE_string, "tokens", None, "File for the subwords that --alignments counts.")
    define(
        flags.DEFINE_boolean,
        "resume",
        True,
        "Whether to continue with an --output that a run of the same command left unfinished.",
    )
    define(flags.DEFINE_integer, "batch_size", 32, "Sentences translated at a time.", lower_bound=1)
    window = (
        "Lines read before the first is answered, sorted by length for speed. On a terminal each "
        "is answered at once."
    )
    define(flags.DEFINE_integer, "window", 1024, window, lower_bound=1)


def translate(
    call: Callable[[Sequence[bytes]], Sequence[Sequence]],
    lines: Iterable[bytes],
    write: Callable[[int, Sequence], None],
    warn: Callable[[str], None],
    batch_size: int,
    window: int,
    start: int = 0,
    after_window: Callable[[int], None] = lambda number: None,
):
    """Translates a stream of lines.

    Args:
        call: translates one batch: for every sentence its translations, the best first.
        lines: sentences without their line ends.
        write: takes the number of a line, from 1, and its translations.
        warn: takes a warning per line that was truncated.
        batch_size, window: see `trainer.serving.translator.translate_lines`.
        start: number of lines that come before.
        after_window: called with the number of the last line of each full window, once it is
            written.
    """
    from trainer.serving import translator

    for number, answer in enumerate(
        translator.translate_lines(call, lines, batch_size, window), start=start + 1
    ):
        write(number, answer)
        if answer[0].truncated:
            warn(
                f"warning: line {number} is longer than the model takes: only its beginning was "
                "translated."
            )
        if (number - start) % window == 0:
            after_window(number)


def _forms(values):
    """Returns the text to write for a sentence, by name of the file's flag."""
    from trainer.inference import output_lines

    best = (
        output_lines.n_best
        if values.nbest
        else output_lines.best_and_score
        if values.scores
        else output_lines.best
    )
    forms = {"output": best, "alignments": output_lines.links, "tokens": output_lines.tokens}
    return {name: form for name, form in forms.items() if values[name].value is not None}


def _check(values):
    """Refuses what can be seen before the model is loaded."""
    if values.nbest and values.scores:
        raise ValueError(
            "Expected no --scores with --nbest, whose lines have them. Received: both. Leave "
            "--scores out."
        )
    if values.nbest and values.beam_size and values.nbest > values.beam_size:
        raise ValueError(
            f"Expected --nbest to be at most --beam_size, {values.beam_size}. Received: "
            f"{values.nbest}. Give a larger --beam_size."
        )
    if values.alpha is not None and not math.isfinite(values.alpha):
        raise ValueError(f"Expected --alpha to be a finite number. Received: {values.alpha}.")
    if streams.STANDARD in (values.alignments, values.tokens):
        raise ValueError(
            "Expected --alignments and --tokens to be files. Received: -, the standard output, "
            "which has the translations."
        )
    named = {name: values[name].value for name in ("input", "output", "alignments", "tokens")}
    streams.refuse_same_files({name: path for name, path in named.items() if path is not None})


@contextlib.contextmanager
def _outputs(values, paths, lines, fingerprint):
    """Files to write to, the number of lines that they answer already, and what is to be done
    after a window.
    """
    if isinstance(lines, DigestedLines) and all(map(streams.can_be_renamed, paths.values())):
        names = ("beam_size", "alpha", "max_length", "nbest", "scores", "batch_size", "window")
        settings = (
            {"saved_model": fingerprint}
            | {name: values[name].value for name in names}
            | streams.relative(paths)
        )
        with unfinished_files(list(paths.values()), settings, lines, values.resume) as unfinished:
            yield (
                unfinished.files,
                unfinished.lines_done,
                lambda number: unfinished.note(number, lines.digest()),
            )
    else:
        with streams.writing(list(paths.values())) as files:
            yield files, 0, lambda number: [file.flush() for file in files]


def _translate_all(values, source, model):
    """Translates what a stream holds, or what is typed at the terminal that it is."""
    typed = source.isatty()
    lines = prompt.typed_lines() if typed else DigestedLines(source)
    forms = _forms(values)
    paths = {name: values[name].value for name in forms}
    shows_bar = (
        sys.stderr.isatty()
        and not typed
        and not (values.output == streams.STANDARD and sys.stdout.isatty())
    )
    total = streams.count_lines(source) if shows_bar else None
    with _outputs(values, paths, lines, model.fingerprint) as (files, done, after_window):
        progress = Progress(sys.stderr, total, done, shows_bar)
        if done:
            progress.say(
                f"Resuming after line {done:,}; earlier lines are in {values.output}.partial."
            )

        def write(number, translations):
            for file, form in zip(files, forms.values()):
                file.write(form(number, translations))

        with contextlib.closing(progress):
            call = progress.counting(model)
            window = 1 if typed else values.window
            translate(
                call, lines, write, progress.say, values.batch_size, window, done, after_window
            )
    if not typed:
        progress.tell_rate()


def _run(values):
    from trainer.inference import exported_model

    _check(values)
    with streams.reading(values.input) as source:
        names = ("beam_size", "alpha", "max_length", "nbest")
        options = {name: values[name].value for name in names}
        aligned = values.alignments is not None or values.tokens is not None
        _translate_all(
            values, source, exported_model.load(values.saved_model, **options, aligned=aligned)
        )


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS):
    """Runs the program with parsed flags; `argv` holds what was not a flag."""
    if len(argv) > 1:
        raise app.UsageError(
            f"Expected the text in --input or on the standard input. Received: {argv[1]!r}."
        )
    import_tensorflow()
    try:
        _run(values)
    except ValueError as error:
        sys.exit(f"trainer.translate: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        # Whoever read our output has stopped; the interpreter must not fail on flushing what is
        # left.
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
