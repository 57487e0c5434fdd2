r"""Translates a test set and prints its sacreBLEU score and other metrics, or a perplexity.

    python -m trainer.evaluate --model_dir=runs/NAME --source=test.en --target=test.de
    python -m trainer.evaluate --model_dir=runs/NAME --checkpoint=best \
        --data=wmt14_translate/de-en --direction=en-de
    python -m trainer.evaluate --saved_model=saved_models/NAME --data=wmt14_translate/de-en \
        --split=dev,test
    python -m trainer.evaluate --model_dir=runs/ONE,runs/OTHER --source=test.en --target=test.de

Prints a line such as `test BLEU = 97.31` for every test set, then the signature of sacreBLEU, then
a line with the value and the signature of every other metric: see `trainer.metrics`. Of several
models, it prints a table of BLEU and chrF2 for every test set, with confidence intervals and
sacreBLEU's paired bootstrap: p is the probability that a model as good as the first differs as
much.

The standard error has the number of pairs of every test set, with blank sides, unknown tokens and
lines that normalization changes.

For a language model, it prints the perplexity of a text with one example per line, per piece of the
vocabulary and per word:

    python -m trainer.evaluate --model_dir=runs/NAME --text=test.txt
"""

import dataclasses
import functools
import math
from collections.abc import Callable

from absl import app, flags

from . import atomic_files, entry_point, metrics, streams
from .metrics import BLEU_TOKENIZERS, DEFAULT_TOKENIZER, check_bleu_tokenize

# Flags that --text allows.
_TEXT_FLAGS = ("text", "model_dir", "checkpoint", "label", "batch_size")
# A batch of texts has as many tokens as `batch_size` sentences of this length.
_TOKENS_PER_SENTENCE = 64
_LARGEST_LOSS = 700.0  # Exponentials of larger numbers are infinite.
_LARGEST_DECIMAL = 1e6  # Larger perplexities are printed with an exponent.
_STRING_FLAGS = {
    "model_dir": "Model directory, or several, comma-separated, to compare them.",
    "checkpoint": "With --model_dir: step of a checkpoint, 'latest', or 'best' (highest dev BLEU). "
    "Default: model.keras.",
    "saved_model": "Instead of --model_dir: an exported model, saved_models/NAME or "
    "saved_models/NAME/VERSION. Also several.",
    "source": "Text files with one sentence per line, plain or .gz, comma-separated.",
    "target": "Files with the reference translations of --source, in the same order.",
    "text": "For a language model: text files with one text per line, plain or .gz, "
    "comma-separated.",
    "label": "Name of the test set in the printed lines. Default: test.",
    "data": "Instead of files: name of a translation set of TensorFlow Datasets.",
    "direction": "Languages of --data. Default: en-de.",
    "data_dir": "Folder of TensorFlow Datasets. Default: $TFDS_DATA_DIR or ~/tensorflow_datasets.",
    "language": "Language for Moses's tokenizer. Default: target language of --direction, or de.",
    "output": "File to write the translations to. Requires a single test set.",
}


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`."""
    define = functools.partial(entry_point.define_flag, values)
    for name, text in _STRING_FLAGS.items():
        define(name, str, text)
    define("split", list, "Splits of --data, comma-separated. Default: test.")
    help_text = "Metrics to print in addition to BLEU, comma-separated."
    define("metrics", list, help_text, list(metrics.DEFAULT_METRICS))
    help_text = f"Tokenizer of sacreBLEU for BLEU: {', '.join(BLEU_TOKENIZERS)}."
    define("bleu_tokenize", str, help_text, DEFAULT_TOKENIZER)
    define("beam_size", int, "Hypotheses per sentence. Default: 4, or the exported value.")
    define("alpha", float, "Exponent of the length penalty. Default: 0.6, or the exported value.")
    define("batch_size", int, "Sentences per batch.", 64, lower_bound=1)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The translations of a test set, their sacreBLEU score, and the number of cut sources."""

    hypotheses: list[str]
    references: list[str]
    score: metrics.Score
    truncated: int


def evaluate(
    translate: Callable[[list[bytes]], list],
    corpus,
    batch_size: int,
    bleu_tokenize: str = DEFAULT_TOKENIZER,
) -> Evaluation:
    """Translates the sources of a `Corpus` in batches of similar length, and scores the result.

    `translate` translates a batch, like `trainer.serving.translator.Translator`.
    """
    from .serving.translator import translate_texts

    hypotheses, truncated = translate_texts(translate, corpus.sources(), batch_size)
    references = list(corpus.targets())
    score = metrics.sacrebleu(hypotheses, references, bleu_tokenize)
    return Evaluation(hypotheses, references, score, truncated)


def _describe(label, corpus, translate, bleu_tokenize):
    """Returns a report of a test set, with warnings, as lines of text."""
    from .data.text_report import count_in_graph, describe_sides

    pairs = list(corpus)
    blank = sum(not source.strip() or not target.strip() for source, target in pairs)
    lines = [f"{label} data: {len(pairs)} pairs, {blank} with a blank side."]
    if (module := getattr(translate, "owner", None)) is not None:
        sides = dict(zip(("source", "target"), zip(*pairs)))
        for side, texts in sides.items():
            sides[side] = count_in_graph(module, [text.encode() for text in texts], side)
        lines += describe_sides(sides)
    warning = metrics.bleu_warning([target for _, target in pairs], bleu_tokenize)
    return lines + ([f"  {warning}"] if warning else [])


def _read_corpora(values):
    """Returns the test sets by label."""
    from .data import text_files
    from .data.corpus import read_tfds

    if values.data not in (None, "files"):
        _reject_flags(values, ("source", "target", "label"), "--data")
        options = values.direction, values.data_dir
        splits = values.split or ["test"]
        return {split: read_tfds(values.data, split, *options) for split in splits}
    if values.source is None and values.target is None:
        raise ValueError(
            "Expected a test set. Received: none. Give --source and --target, or --data=NAME of a "
            "translation set of TensorFlow Datasets."
        )
    _reject_flags(values, ("split", "direction", "data_dir"), "files")
    return {values.label or "test": text_files.read_text(values.source, values.target)}


def _reject_flags(values, names, other):
    """Raises ValueError if one of the flags `names` is given with `other`."""
    for name in names:
        if values[name].present:
            raise ValueError(
                f"Expected no --{name} with {other}. Received: {values[name].value!r}. Leave one "
                "of them out."
            )


def _models(values):
    """Returns the paths of the models, after checks of the flags that choose them."""
    if (values.model_dir is None) == (values.saved_model is None):
        received = "neither" if values.model_dir is None else "both"
        raise ValueError(f"Expected either --model_dir or --saved_model. Received: {received}.")
    if values.saved_model is not None:
        other = "--saved_model, whose weights and beam size are fixed"
        _reject_flags(values, ("beam_size", "checkpoint"), other)
    paths = (values.saved_model or values.model_dir).split(",")
    if len(paths) > 1:
        _reject_flags(values, ("output",), "several models")
    if len({*paths}) < len(paths):
        raise ValueError(f"Expected models that differ. Received: {','.join(paths)}.")
    return paths


def _load(values, path):
    """Returns the function that translates a batch with a model."""
    from .serving import model_versions

    if values.saved_model is None:
        return _load_model_dir(values, path)
    return model_versions.load(path, values.alpha)


def _load_model_dir(values, path):
    from .model_dir import TRANSLATION, ModelDirectory
    from .serving.translation_module import (
        FastTransformer,
        TranslationModule,
        TranslationSettings,
    )
    from .serving.translation_settings import longest_input
    from .serving.translator import Translator
    from .training import checkpoints

    given = {name: values[name].value for name in ("beam_size", "alpha")}
    given = {name: value for name, value in given.items() if value is not None}
    most = max(TranslationSettings.max_beam_size, values.beam_size or 1)
    settings = TranslationSettings(**given, max_beam_size=most)
    directory = ModelDirectory.open(path, TRANSLATION)
    transformer = checkpoints.load_model(directory, values.checkpoint)
    settings = dataclasses.replace(settings, max_input_length=longest_input(directory))
    module = TranslationModule(FastTransformer(transformer), directory.load_tokenizers(), settings)
    return Translator(module.serve, module)


def _check_metrics(values):
    """Checks --metrics and --bleu_tokenize, and returns the language for Moses's tokenizer."""
    unknown = [name for name in values.metrics if name not in metrics.METRICS]
    if unknown:
        raise ValueError(
            f"Expected metrics among {', '.join(metrics.METRICS)}. Received: {unknown[0]!r}. "
            "Correct --metrics."
        )
    check_bleu_tokenize(values.bleu_tokenize)
    return values.language or (values.direction or "en-de").rpartition("-")[2]


def _check_output(values, count):
    """Raises an error if --output can't be written. Called before the first translation."""
    if (path := values.output) is None:
        return
    for name in ("source", "target"):
        for file in (values[name].value or "").split(","):
            streams.check_files({name: file.strip(), "output": path})
    if count > 1:
        raise ValueError(
            f"Expected a single test set with --output. Received: {count}. Evaluate them "
            "separately."
        )
    atomic_files.check_writable(path)


def _write_output(path, hypotheses):
    if path is not None:
        atomic_files.write_text(path, "".join(f"{hypothesis}\n" for hypothesis in hypotheses))


def _evaluate(label, corpus, translate, values):
    """Returns the `Evaluation` of a test set, and reports its text on the standard error."""
    streams.report(*_describe(label, corpus, translate, values.bleu_tokenize))
    result = evaluate(translate, corpus, values.batch_size, values.bleu_tokenize)
    if result.truncated:
        streams.report(
            f"warning: {result.truncated} sentences of {label} were truncated to the maximum "
            "input length of the model."
        )
    return result


def _compare(models, test_sets, values):
    """Prints a table of the scores of several models for every test set."""
    systems = {label: {} for label in test_sets}
    for model in models:
        translate = _load(values, model)
        for label, corpus in test_sets.items():
            streams.report(f"{model}:")
            result = _evaluate(label, corpus, translate, values)
            systems[label][model] = result.hypotheses
    for label, corpus in test_sets.items():
        print(f"{label}, paired bootstrap against {models[0]}:")
        table = metrics.compare(systems[label], list(corpus.targets()), values.bleu_tokenize)
        print("\n".join(table), flush=True)


def _evaluate_text(values):
    """Prints the perplexity of a text for each of the language models."""
    from .data.text_files import read_one_side

    own = flags.FlagValues()
    define_flags(own)
    others = [name for name in own if name not in _TEXT_FLAGS]
    _reject_flags(values, others, "--text, which evaluates a language model")
    corpus, models, label = read_one_side(values.text), _models(values), values.label or "test"
    for path in models:
        for line in _perplexities(path, corpus, label, values):
            print(f"{path}: {line}" if len(models) > 1 else line, flush=True)


def _perplexities(path, corpus, label, values):
    """Returns lines with the perplexities of a text, and reports the text on the standard error."""
    import numpy as np

    from .data.batching import evaluation_batches, is_blank, is_too_long
    from .data.encoding import encode_pairs
    from .data.text_report import describe_sides
    from .data.tokenizer import Tokenizers
    from .model_dir import LANGUAGE_MODEL, ModelDirectory
    from .training import checkpoints
    from .training.training_model import mean_loss

    directory = ModelDirectory.open(path, LANGUAGE_MODEL)
    tokenizers = Tokenizers.shared(directory.load_tokenizer())
    model = checkpoints.load_model(directory, values.checkpoint)
    pairs = encode_pairs(corpus, tokenizers)
    lengths = pairs.lengths_of(np.arange(len(pairs)))
    are_too_long = is_too_long(lengths, model.config.num_positions or math.inf)
    are_used = ~are_too_long & ~is_blank(lengths)
    used, too_long = np.flatnonzero(are_used), int(are_too_long.sum())
    report = f"{label} data: {len(pairs)} texts, {len(pairs) - len(used) - too_long} blank"
    report += f", {too_long} with more tokens than the model has positions" if too_long else ""
    streams.report(f"{report}.", *describe_sides(pairs.counts))
    if not len(used):
        raise ValueError("Expected a text to evaluate. Received: none. Give another --text.")
    batch_tokens = values.batch_size * _TOKENS_PER_SENTENCE
    longest = int(lengths[:, used].max())
    loss, pieces = mean_loss(model, evaluation_batches(pairs, batch_tokens, used), longest)
    words = sum(len(text.split()) for (text,), x in zip(corpus, are_used) if x) + len(used)
    return [
        f"{label} perplexity per {unit} = {_perplexity(loss * pieces / count)}  "
        f"({count:,} {unit}s, with the end of each of {len(used):,} texts)"
        for unit, count in {"piece": pieces, "word": words}.items()
    ]


def _perplexity(loss):
    """Returns the exponential of a loss as text. In text without spaces, a word is a sentence."""
    value = math.exp(loss) if loss < _LARGEST_LOSS else math.inf
    return f"{value:.2f}" if value < _LARGEST_DECIMAL else f"{value:.3g}"


def _run(values):
    if values.text:
        _evaluate_text(values)
        return
    language = _check_metrics(values)
    test_sets = _read_corpora(values)
    models = _models(values)
    if len(models) > 1:
        _compare(models, test_sets, values)
        return
    translate = _load(values, models[0])
    _check_output(values, len(test_sets))
    results = {}
    for label, corpus in test_sets.items():
        results[label] = result = _evaluate(label, corpus, translate, values)
        try:
            _write_output(values.output, result.hypotheses)
        finally:  # The score took longer than the file, which may not be writable.
            print(f"{label} BLEU = {result.score.value:.2f}", flush=True)
    print(result.score.signature)
    for label, result in results.items():
        for name in values.metrics:
            sides = result.hypotheses, result.references
            score = metrics.score(name, *sides, language, values.bleu_tokenize)
            print(f"{label} {score.name} = {score.value:.2f}  {score.signature}", flush=True)


main = functools.partial(entry_point.run, "trainer.evaluate", _run)


if __name__ == "__main__":
    define_flags()
    app.run(main, flags_parser=entry_point.parse_flags)
