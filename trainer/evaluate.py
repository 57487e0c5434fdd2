"""Translates a test set and prints its sacreBLEU, cased and on detokenised text.

    python -m trainer.evaluate --model_dir=runs/NAME --source=test.en --target=test.de
    python -m trainer.evaluate --saved_model=saved_models/NAME --data=synthetic --split=test,test_longer

Prints a line such as `test BLEU = 97.31` for every test set, then sacreBLEU's signature.
"""

import dataclasses
import os
import sys
from collections.abc import Callable

# TensorFlow's start-up notes would stand between the lines that are for the reader.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from absl import app, flags
from sacrebleu.metrics import BLEU

from trainer.data import corpora
from trainer.serving import saved_models
from trainer.serving.module import TranslationModule, TranslationSettings
from trainer.serving.translator import Translation, Translator, one_line, translate_lines


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`."""

    def define(kind, *args, **kwargs):
        kind(*args, flag_values=values, **kwargs)

    define(flags.DEFINE_string, "model_dir", None, "Directory of a trained model.")
    define(flags.DEFINE_string, "saved_model", None, "Instead: saved_models/NAME or saved_models/NAME/VERSION.")
    define(flags.DEFINE_string, "source", None, "Text file, one sentence a line; .gz is read too.")
    define(flags.DEFINE_string, "target", None, "Their reference translations.")
    define(flags.DEFINE_string, "label", None, "What the printed line begins with. Default: test.")
    define(flags.DEFINE_enum, "data", None, ["synthetic"], "Instead of files: the embedded corpus.")
    define(flags.DEFINE_list, "split", None, "Splits of --data, with commas between them. Default: test.")
    define(flags.DEFINE_integer, "beam_size", None, "Hypotheses kept per sentence. Default: 4, or as exported.")
    define(flags.DEFINE_float, "alpha", None, "Exponent of the length penalty. Default: 0.6, or as exported.")
    define(flags.DEFINE_integer, "batch_size", 64, "Sentences translated at a time.", lower_bound=1)
    define(flags.DEFINE_string, "output", None, "File for the translations of a single test set.")


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The translations of a test set and how good they are.

    Args:
        hypotheses: one translation per sentence, each a single line.
        bleu: sacreBLEU, from 0 to 100.
        signature: sacreBLEU's description of how it counted.
        truncated: number of sentences of which only the beginning was translated.
    """

    hypotheses: list[str]
    bleu: float
    signature: str
    truncated: int


def evaluate(translate: Callable[[list[bytes]], list[Translation]], corpus: corpora.Corpus, batch_size: int) -> Evaluation:
    """Translates the sources of a corpus, in batches of like length, and compares with its targets.

    Args:
        translate: translates one batch, as `trainer.serving.translator.Translator`.
        corpus: what is translated.
        batch_size: sentences per batch.
    """
    sources = [source.encode() for source in corpus.sources()]
    answers = list(translate_lines(translate, sources, batch_size, window=len(sources)))
    hypotheses = [one_line(answer.text).decode(errors="replace") for answer in answers]
    metric = BLEU()
    score = metric.corpus_score(hypotheses, [list(corpus.targets())])
    return Evaluation(
        hypotheses, score.score, str(metric.get_signature()), truncated=sum(answer.truncated for answer in answers)
    )


def _read_corpora(values):
    """The test sets by their labels."""
    if values.data is not None:
        for name in ("source", "target", "label"):
            if values[name].value is not None:
                raise ValueError(f"Expected either --{name} or --data. Received: both. Leave one of them out.")
        return {split: corpora.read_synthetic(split) for split in values.split or ["test"]}
    if values.source is None and values.target is None:
        raise ValueError("Expected a test set. Received: none. Give --source and --target, or --data=synthetic.")
    if values.split is not None:
        raise ValueError("Expected no --split with files. Received: both. Name the test set with --label.")
    return {values.label or "test": corpora.read_text(values.source, values.target)}


def _load(values):
    if (values.model_dir is None) == (values.saved_model is None):
        received = "neither" if values.model_dir is None else "both"
        raise ValueError(f"Expected either --model_dir or --saved_model. Received: {received}.")
    if values.saved_model is not None:
        if values.beam_size is not None:
            raise ValueError(
                f"Expected no --beam_size with --saved_model, whose beam size is fixed. Received: {values.beam_size}. "
                "Export the model with another --beam_size, or evaluate its --model_dir."
            )
        return saved_models.load(values.saved_model, values.alpha)
    chosen = {name: values[name].value for name in ("beam_size", "alpha") if values[name].value is not None}
    module = TranslationModule.from_model_dir(values.model_dir, TranslationSettings(**chosen))
    return Translator(module.serve, module)


def _open_output(path, count):
    if path is None:
        return None
    if count > 1:
        raise ValueError(f"Expected a single test set with --output. Received: {count}. Evaluate them one by one.")
    try:
        return open(path, "w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise ValueError(f"Expected a file that can be written. Received: {path} ({error.strerror}).") from error


def _run(values):
    test_sets = _read_corpora(values)
    translate = _load(values)
    output = _open_output(values.output, len(test_sets))
    for label, corpus in test_sets.items():
        result = evaluate(translate, corpus, values.batch_size)
        if result.truncated:
            print(f"warning: {result.truncated} sentences of {label} were cut: they are longer than the model takes.", file=sys.stderr)
        if output is not None:
            with output:
                output.writelines(f"{hypothesis}\n" for hypothesis in result.hypotheses)
        print(f"{label} BLEU = {result.bleu:.2f}", flush=True)
    print(result.signature)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS):
    """Runs the program with parsed flags; `argv` holds what was not a flag."""
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1]!r}.")
    try:
        _run(values)
    except ValueError as error:
        sys.exit(f"trainer.evaluate: {error}")


if __name__ == "__main__":
    define_flags()
    app.run(main)
