"""Compares the decoding speed of this project, CTranslate2 and OpenNMT-tf with the same weights.

    python -m benchmarks.decoding --model_dir=runs/mine --text=test.en \
        --opennmt_python=ONMT/bin/python
    python -m benchmarks.decoding --preset=shaw_base --vocab_text=train.en --vocab_text=train.de \
        --text=test.en

Systems:
    exact              this project's SavedModel. The search ends when no better translation is
                       possible, as in tensor2tensor
    early              the same with --early_stopping of trainer.export: the search ends with the
                       first beam_size finished translations, as in CTranslate2
    compiled           `exact` with --jit_compile: XLA compiles the search of up to 4 sentences of
                       up to 64 ids
    compiled early     `early` with --jit_compile
    early bfloat16, compiled early bfloat16
                       the same with --precision=bfloat16
    ctranslate2        CTranslate2 in float32
    ctranslate2 int8   CTranslate2 with quantized weights
    opennmt            OpenNMT-tf 2.32 in the environment of --opennmt_python

Each system has a worker process that maps strings to strings. The workers take turns and translate
the same batches of sentences, sorted by length. alpha is 0.6; CTranslate2 runs with the most
similar length_penalty.

With --preset, weights are random, and all heads of a layer share one table, because CTranslate2
supports only shared tables. Sentences are truncated to --length ids, and all translations have
--length ids.

Columns, medians over runs with bootstrapped 95 % intervals:
    sentences/s                  translated sentences per second
    time / exact, time / early   time divided by that of another system in the same run
    median ms, 99th ms           percentiles of the latency, for batches of one sentence
    MB                           peak memory
    words                        mean words of a translation
    same                         translations equal to those of `exact`
"""

import itertools
import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from absl import app, flags, logging

from benchmarks.decoding import models as models_module
from benchmarks.decoding.exported_models import ExportedModels
from benchmarks.flag_checks import check_no_arguments, check_values, positive_integers
from benchmarks.tables import (
    format_interval,
    median_and_interval,
    print_cells,
    print_header,
    write_csv,
)
from benchmarks.workers import available, in_turns, start_workers

FLAGS = flags.FLAGS
SYSTEMS = (
    *("exact", "early", "compiled", "compiled early"),
    *("early bfloat16", "compiled early bfloat16"),
    *("ctranslate2", "ctranslate2 int8", "opennmt"),
)
flags.DEFINE_string("model_dir", None, "Directory of a trained model.")
flags.DEFINE_string("preset", None, "Architecture with random weights, instead of --model_dir.")
flags.DEFINE_multi_string("vocab_text", [], "With --preset: text to train the vocabulary on.")
flags.DEFINE_integer("vocab_size", 32000, "With --preset: vocabulary size.", lower_bound=4)
flags.DEFINE_integer(
    "length", 28, "With --preset: number of ids per sentence and translation.", lower_bound=2
)
flags.DEFINE_multi_string(
    "text", None, "Sentences, one per line; may be .gz. Repeat for more texts.", required=True
)
flags.DEFINE_integer(
    "sentences", None, "Sentences of each text. Default: all, or 32 with --preset.", lower_bound=1
)
flags.DEFINE_list("batches", ["1", "32", "64"], "Sentences per batch.")
flags.DEFINE_list("beams", ["1", "4"], "Beam sizes.")
flags.DEFINE_list("threads", ["1"], "Threads per op.")
flags.DEFINE_list("systems", list(SYSTEMS), "Systems to measure. `exact` is always included.")
flags.DEFINE_integer("runs", 10, "Measurements of each system.", lower_bound=1)
flags.DEFINE_string("opennmt_python", None, "Python of an environment with OpenNMT-tf.")
flags.DEFINE_string("csv", None, "CSV file for the table.")

CASE = ("text", "threads", "beam", "batch", "system")
INTERVALS = ("sentences/s", "time / exact", "time / early")
NUMBERS = {"median ms": ".1f", "99th ms": ".1f", "MB": ".0f", "words": ".1f", "same": ".0%"}
COLUMNS = CASE + tuple(f"{name}{end}" for name in INTERVALS for end in ("", " low", " high"))
COLUMNS += tuple(NUMBERS)


def check_flags():
    """Raises `app.UsageError` for flags that contradict each other."""
    if (FLAGS.model_dir is None) == (FLAGS.preset is None):
        received = "neither" if FLAGS.preset is None else "both"
        raise app.UsageError(f"Pass either --model_dir or --preset. Received: {received}.")
    if FLAGS.preset is not None and not FLAGS.vocab_text:
        raise app.UsageError("--preset requires --vocab_text.")
    check_values("systems", SYSTEMS)
    for name in ("batches", "beams", "threads"):
        positive_integers(name)


def model_and_texts(folder: Path) -> tuple[Path, dict[str, list[str]]]:
    """Returns the model directory, and the sentences of every text, sorted by length."""
    texts = {Path(path).name: models_module.read_lines(path) for path in FLAGS.text}
    if FLAGS.model_dir is not None:
        return Path(FLAGS.model_dir), {
            name: sorted(lines[: FLAGS.sentences], key=len) for name, lines in texts.items()
        }
    lines = [line for path in FLAGS.vocab_text for line in models_module.read_lines(path)]
    model_dir = models_module.create_random_model(
        folder / "model", FLAGS.preset, lines, FLAGS.vocab_size, share_heads=True
    )
    return model_dir, {
        name: models_module.cut_sentences(model_dir, lines, FLAGS.length, FLAGS.sentences or 32)
        for name, lines in texts.items()
    }


def measure(workers, sentences, batch_size):
    """Translates the sentences in every run.

    Returns:
        `(seconds, translations, megabytes)`, each by system: an array `[runs, batches]`, a list of
        strings, and the peak memory.
    """
    batches = [sentences[i : i + batch_size] for i in range(0, len(sentences), batch_size)]
    for worker in workers.values():
        worker.ask(batches)
    answers = {name: [] for name in workers}
    for _, name in in_turns(workers, FLAGS.runs):
        answers[name].append(workers[name].ask(batches))
    seconds = {name: np.array([a["seconds"] for a in each]) for name, each in answers.items()}
    translations = {name: each[-1]["translations"] for name, each in answers.items()}
    megabytes = {name: max(a["megabytes"] for a in each) for name, each in answers.items()}
    return seconds, translations, megabytes


def make_rows(case: dict, measured):
    """Yields a row of the table for every system.

    Args:
        case: first columns of the table.
        measured: see `measure`.
    """
    seconds, translations, megabytes = measured
    totals = {name: times.sum(axis=1) for name, times in seconds.items()}
    for name, found in translations.items():
        row = case | {"system": name, "MB": megabytes[name]}
        values = {"sentences/s": len(found) / totals[name]}
        for other in ("exact", "early"):
            values[f"time / {other}"] = totals[name] / totals[other] if other in totals else None
        for column, values_by_run in values.items():
            numbers = ("", "", "") if values_by_run is None else median_and_interval(values_by_run)
            row |= dict(zip((column, f"{column} low", f"{column} high"), numbers))
        row["median ms"], row["99th ms"] = (
            np.percentile(1000 * seconds[name], [50, 99]) if case["batch"] == 1 else ("", "")
        )
        row["words"] = np.mean([len(text.split()) for text in found])
        pairs = zip(found, translations["exact"], strict=True)
        yield row | {"same": np.mean([one == other for one, other in pairs])}


def print_row(row):
    cells = [str(row[name]) for name in CASE]
    for name, digits in zip(INTERVALS, (1, 2, 2)):
        values = [row[f"{name}{end}"] for end in ("", " low", " high")]
        cells.append("" if values[0] == "" else format_interval(*values, digits=digits))
    cells += ["" if row[name] == "" else format(row[name], form) for name, form in NUMBERS.items()]
    print_cells(cells)


def run_all(models: ExportedModels, texts: dict[str, list[str]]) -> list[dict]:
    """Prints and returns all rows."""
    pythons, rows = {"opennmt": FLAGS.opennmt_python}, []
    chosen = [name for name in SYSTEMS if name == "exact" or name in FLAGS.systems]
    systems = available(chosen, pythons)
    print_header((*CASE, *INTERVALS, *NUMBERS))
    for threads, beam in itertools.product(
        positive_integers("threads"), positive_integers("beams")
    ):
        settings = {name: models.worker_settings(name, beam, threads) for name in systems}
        with start_workers("benchmarks.decoding.worker", settings, pythons) as workers:
            for text, batch in itertools.product(texts, positive_integers("batches")):
                case = {"text": text, "threads": threads, "beam": beam, "batch": batch}
                for row in make_rows(case, measure(workers, texts[text], batch)):
                    rows.append(row)
                    print_row(row)
    return rows


def main(argv):
    check_no_arguments(argv)
    check_flags()
    logging.set_verbosity(logging.WARNING)
    tf.get_logger().setLevel("WARNING")
    with tempfile.TemporaryDirectory() as folder:
        model_dir, texts = model_and_texts(Path(folder))
        length = None if FLAGS.preset is None else FLAGS.length
        models = ExportedModels(model_dir, Path(folder), FLAGS.opennmt_python, length)
        rows = run_all(models, texts)
    if FLAGS.csv:
        write_csv(FLAGS.csv, COLUMNS, rows)


if __name__ == "__main__":
    app.run(main)
