"""Compares the decoding speed of this project and CTranslate2 with the same weights.

    python -m benchmarks.decoding --model_dir=runs/mine --text=test.en
    python -m benchmarks.decoding --preset=shaw_base --vocab_text=train.en --vocab_text=train.de \
        --text=test.en

Systems:
    exact              this project's SavedModel. The search ends when no better translation is
                       possible, as in tensor2tensor
    early              the same with --early_stopping of trainer.export: the search ends with the
                       first beam_size finished translations, as in CTranslate2
    early bfloat16     `early` with --precision=bfloat16
    ctranslate2        CTranslate2 in float32
    ctranslate2 int8   CTranslate2 with quantized weights

Each system has a worker process that maps strings to strings. The workers take turns and translate
the same batches of sentences, sorted by length. alpha is 0.6; CTranslate2 runs with the most
similar length_penalty.

With --preset, weights are random, and all heads of a layer share one table, because CTranslate2
supports only shared tables. Sentences are truncated to 28 ids, and all translations have 28 ids.

Columns, medians over runs with bootstrapped 95 % intervals:
    sentences/s                  translated sentences per second
    time / exact, time / early   time divided by that of another system in the same run
    MB                           peak memory
    same                         translations equal to those of `exact`
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from absl import app, flags, logging

from benchmarks.decoding import models
from benchmarks.tables import format_median, print_cells, print_header
from benchmarks.workers import ask_in_turns

FLAGS = flags.FLAGS
SYSTEMS = ("exact", "early", "early bfloat16", "ctranslate2", "ctranslate2 int8")
# With --preset.
LENGTH = 28
flags.DEFINE_string("model_dir", None, "Directory of a trained model.")
flags.DEFINE_string("preset", None, "Architecture with random weights, instead of --model_dir.")
flags.DEFINE_multi_string("vocab_text", [], "With --preset: text to train the vocabulary on.")
flags.DEFINE_integer("vocab_size", 32000, "With --preset: vocabulary size.", lower_bound=4)
flags.DEFINE_string("text", None, "Sentences, one per line; may be .gz.", required=True)
flags.DEFINE_integer("sentences", 192, "Sentences of the text.", lower_bound=1)
flags.DEFINE_list("batches", ["1", "32", "64"], "Sentences per batch.")
flags.DEFINE_integer("beam_size", 4, "Beam size.", lower_bound=1)
flags.DEFINE_integer("threads", 1, "Threads per op.", lower_bound=1)
flags.DEFINE_list("systems", list(SYSTEMS), "Systems to measure. `exact` is always included.")
flags.DEFINE_integer("runs", 10, "Measurements of each system.", lower_bound=1)
flags.register_validator("systems", set(SYSTEMS).issuperset, f"Expected {', '.join(SYSTEMS)}.")


def model_and_sentences(folder: Path) -> tuple[Path, list[str]]:
    """Returns the model directory, and the sentences, sorted by length."""
    text = models.read_lines(FLAGS.text)
    if FLAGS.model_dir is not None:
        return Path(FLAGS.model_dir), sorted(text[: FLAGS.sentences], key=len)
    lines = [line for path in FLAGS.vocab_text for line in models.read_lines(path)]
    model_dir = models.create_random_model(folder / "model", FLAGS.preset, lines, FLAGS.vocab_size)
    return model_dir, models.cut_sentences(model_dir, text, LENGTH, FLAGS.sentences)


def print_rows(answers, count: int, batch_size: int):
    """Prints a row for each system from its answers to all runs, with `count` sentences each."""
    # The first run traces graphs and is not counted.
    answers = {name: each[1:] for name, each in answers.items()}
    seconds = {name: np.array([a["seconds"] for a in each]) for name, each in answers.items()}
    for name, times in seconds.items():
        cells = [str(batch_size), name, format_median(count / times, digits=1)]
        for other in ("exact", "early"):
            cells.append(format_median(times / seconds[other]) if other in seconds else "")
        cells.append(f"{max(answer['megabytes'] for answer in answers[name]):.0f}")
        pairs = zip(answers[name][-1]["result"], answers["exact"][-1]["result"], strict=True)
        print_cells([*cells, f"{np.mean([one == other for one, other in pairs]):.0%}"])


def main(_):
    if (FLAGS.model_dir is None) == (FLAGS.preset is None):
        raise app.UsageError("Pass either --model_dir or --preset.")
    logging.set_verbosity(logging.WARNING)
    tf.get_logger().setLevel("WARNING")
    sizes = [int(size) for size in FLAGS.batches]
    systems = [name for name in SYSTEMS if name == "exact" or name in FLAGS.systems]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        model_dir, sentences = model_and_sentences(folder)
        options = {"beam_size": FLAGS.beam_size, "length": LENGTH if FLAGS.preset else None}
        settings = {}
        for name in systems:
            path = folder / name.replace(" ", "_")
            settings[name] = models.export_model(model_dir, name, path, **options)
            settings[name]["threads"] = FLAGS.threads
        questions = [
            [[sentences[i : i + size] for i in range(0, len(sentences), size)]] * (FLAGS.runs + 1)
            for size in sizes
        ]
        print_header(
            ["batch", "system", "sentences/s", "time / exact", "time / early", "MB", "same"]
        )
        answers = ask_in_turns("benchmarks.decoding.worker", settings, questions)
        for size, each in zip(sizes, answers):
            print_rows(each, len(sentences), size)


if __name__ == "__main__":
    app.run(main)
