"""How fast translations are made: this project's SavedModel beside CTranslate2 and OpenNMT-tf, with the same weights.

    python benchmarks/decode.py --model_dir=runs/mine --text=test.en --opennmt_python=ONMT/bin/python
    python benchmarks/decode.py --preset=shaw_base --vocab_text=train.en --vocab_text=train.de --text=test.en

Every peer is a process of its own (decode_worker.py) that takes strings and gives strings; all live at the same time and translate
in turns, in an order that changes from run to run, the same batches of sentences sorted by length. Prints sentences per second
(median over runs, 95% interval), the ratio of each peer's time to ours in the same run, and to that of "ours early", at batch 1 the
latency of a sentence, and the most memory held meanwhile. All peers have the alpha 0.6, CTranslate2 the length_penalty that comes
nearest. "ours" searches until no better translation is possible, as tensor2tensor; "ours early" (--early_stopping of trainer.export)
until as many as the beam is wide are finished, as CTranslate2.

With --preset weights are drawn, one table of relative positions for all heads of a layer (CTranslate2 has no others), and the
sentences are cut to --length ids: no output ends by itself, each has as many ids as its source.
--opennmt_python is the Python of an environment with OpenNMT-tf 2.32; without it that peer is left out.
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from absl import app, flags, logging

from benchmarks.common.bootstrap import median_and_interval
from benchmarks.common.flag_checks import check_values, positive_integers
from benchmarks.common.tables import print_cells, print_header, write_csv
from benchmarks.common.worker_processes import available, in_turns, start_workers
from benchmarks.decoding import models
from trainer.serving.settings import TranslationSettings

FLAGS = flags.FLAGS
EARLY = "ours early"
PEERS = ("ours", EARLY, "ctranslate2", "ctranslate2 int8", "opennmt")
flags.DEFINE_string("model_dir", None, "Directory of a trained model.")
flags.DEFINE_string(
    "preset", None, "Instead of --model_dir: an architecture, whose weights are drawn."
)
flags.DEFINE_multi_string("vocab_text", [], "With --preset: texts to learn the vocabulary from.")
flags.DEFINE_integer("vocab_size", 32000, "With --preset: its size.", lower_bound=4)
flags.DEFINE_integer(
    "length", 28, "With --preset: ids of every sentence and of its output.", lower_bound=2
)
flags.DEFINE_multi_string(
    "text", None, "Sentences, one a line; may be .gz; given again, another text.", required=True
)
flags.DEFINE_integer(
    "sentences", None, "Of each text. Default: all; with --preset 32.", lower_bound=1
)
flags.DEFINE_list("batches", ["1", "32", "64"], "Sentences of a batch.")
flags.DEFINE_list("beams", ["1", "4"], "Beam sizes.")
flags.DEFINE_list("threads", ["1"], "Threads that one operation may use.")
flags.DEFINE_list("peers", list(PEERS), "Who is measured; ours always is.")
flags.DEFINE_integer("runs", 10, "Runs of every peer, in turns.", lower_bound=1)
flags.DEFINE_string("opennmt_python", None, "Python of an environment with OpenNMT-tf.")
flags.DEFINE_string("csv", None, "Where to write the table.")

ALPHA = 0.6
# Ids of a translation in OpenNMT-tf unless told otherwise; more than any that ends by itself has.
MAX_LENGTH = 250
COLUMNS = (
    *(
        "text",
        "threads",
        "beam",
        "batch",
        "peer",
        "sentences/s",
        "low",
        "high",
        "time over ours",
        "ratio low",
        "ratio high",
    ),
    *(
        "time over early",
        "early low",
        "early high",
        "median ms",
        "99th ms",
        "megabytes",
        "words",
        "as ours",
    ),
)


def check_flags():
    """Refuses what contradicts itself."""
    if (FLAGS.model_dir is None) == (FLAGS.preset is None):
        received = "neither" if FLAGS.preset is None else "both"
        raise app.UsageError(f"Expected either --model_dir or --preset. Received: {received}.")
    if FLAGS.preset is not None and not FLAGS.vocab_text:
        raise app.UsageError("Expected --vocab_text with --preset. Received: none.")
    check_values("peers", PEERS)
    for name in ("batches", "beams", "threads"):
        positive_integers(name)


def model_and_texts(folder):
    """The model directory, and the sentences of every text, sorted by length."""
    texts = {Path(path).name: models.read_lines(path) for path in FLAGS.text}
    if FLAGS.model_dir is not None:
        return Path(FLAGS.model_dir), {
            name: sorted(lines[: FLAGS.sentences], key=len) for name, lines in texts.items()
        }
    lines = [line for path in FLAGS.vocab_text for line in models.read_lines(path)]
    model_dir = models.random_model(
        folder / "model", FLAGS.preset, lines, FLAGS.vocab_size, share_heads=True
    )
    count = FLAGS.sentences or 32
    return model_dir, {
        name: models.sentences_of_length(model_dir, lines, FLAGS.length, count)
        for name, lines in texts.items()
    }


class Models:
    """The peers' models in a folder, each made once."""

    def __init__(self, model_dir, folder):
        self.model_dir, self.folder = model_dir, folder
        self.made = {}

    def settings(self, name, beam_size, threads):
        """What a worker is told."""
        forced = FLAGS.preset is not None
        common = {
            "threads": threads,
            "beam_size": beam_size,
            "max_length": FLAGS.length if forced else MAX_LENGTH,
        }
        if name in ("ours", EARLY):
            settings = TranslationSettings(
                beam_size, ALPHA, extra_length=0 if forced else 50, early_stopping=name == EARLY
            )
            path = self.once(
                (name, beam_size),
                lambda path: models.write_ours(self.model_dir, path, settings),
            )
            return common | {"kind": "ours", "path": path}
        if name == "opennmt":
            self.once("opennmt", lambda path: models.write_for_opennmt(self.model_dir, path, ALPHA))
            folder = self.folder / "opennmt"
            build = lambda _: models.build_opennmt(
                FLAGS.opennmt_python, folder, beam_size, common["max_length"]
            )
            path = self.once(("opennmt", beam_size), build)
            return common | {
                "kind": "opennmt",
                "path": path,
                "vocabulary": str(self.model_dir / "vocab.model"),
            }
        quantization = "int8" if name.endswith("int8") else "none"
        path = self.once(
            name,
            lambda path: models.write_for_ctranslate2(self.model_dir, path, quantization),
        )
        # 15 ids are a usual length here: see trainer/serving/ctranslate2_model.py.
        return common | {
            "kind": "ctranslate2",
            "path": path,
            "length_penalty": ALPHA * 15 / (5 + 15),
        }

    def once(self, key, write):
        if key not in self.made:
            name = key if isinstance(key, str) else "_".join(map(str, key))
            self.made[key] = write(self.folder / name.replace(" ", "_"))
        return self.made[key]


def chosen_peers():
    """Names of the peers, ours first; says which are left out."""
    return available(["ours", *(name for name in FLAGS.peers if name != "ours")], pythons())


def pythons():
    """Of peers with an environment of their own."""
    return {"opennmt": FLAGS.opennmt_python}


def measure(peers, sentences, batch_size):
    """For every peer the seconds of each batch, `[runs, batches]`, the last answer, and most megabytes."""
    batches = [sentences[i : i + batch_size] for i in range(0, len(sentences), batch_size)]
    answers = {name: peer.ask(batches) for name, peer in peers.items()}
    seconds, megabytes = {name: [] for name in peers}, dict.fromkeys(peers, 0.0)
    for _, name in in_turns(peers, FLAGS.runs):
        answers[name] = peers[name].ask(batches)
        seconds[name].append(answers[name]["seconds"])
        megabytes[name] = max(megabytes[name], answers[name]["megabytes"])
    return {name: np.array(value) for name, value in seconds.items()}, answers, megabytes


def rows_of(case, measured, count):
    """A row of the table for every peer."""
    seconds, answers, megabytes = measured
    totals = {name: times.sum(axis=1) for name, times in seconds.items()}
    for name, times in seconds.items():
        rate = median_and_interval(count / totals[name])
        over_ours = median_and_interval(totals[name] / totals["ours"])
        over_early = (
            median_and_interval(totals[name] / totals[EARLY]) if EARLY in totals else ("", "", "")
        )
        found = answers[name]["translations"]
        same = np.mean(
            [
                one == other
                for one, other in zip(found, answers["ours"]["translations"], strict=True)
            ]
        )
        latencies = np.percentile(1000 * times, [50, 99]) if case["batch"] == 1 else ("", "")
        words = np.mean([len(text.split()) for text in found])
        values = [*rate, *over_ours, *over_early, *latencies, megabytes[name], words, same]
        yield case | {"peer": name} | dict(zip(COLUMNS[5:], values, strict=True))


def print_row(row):
    def shown(name, form="{:.1f}"):
        return "" if row[name] == "" else form.format(row[name])

    cells = [str(row[name]) for name in COLUMNS[:5]]
    cells.append(f"{shown('sentences/s')} ({shown('low')} – {shown('high')})")
    cells.append(
        f"{shown('time over ours', '{:.2f}')} ({shown('ratio low', '{:.2f}')} – {shown('ratio high', '{:.2f}')})"
    )
    cells.append(
        f"{shown('time over early', '{:.2f}')} ({shown('early low', '{:.2f}')} – {shown('early high', '{:.2f}')})"
    )
    cells += [
        shown("median ms"),
        shown("99th ms"),
        shown("megabytes", "{:.0f}"),
        shown("words"),
        f"{100 * row['as ours']:.0f} %",
    ]
    print_cells(cells)


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1]!r}.")
    check_flags()
    logging.set_verbosity(logging.WARNING)
    tf.get_logger().setLevel("WARNING")
    header = *COLUMNS[:6], "time over ours", "time over early", *COLUMNS[14:]
    names, rows = chosen_peers(), []
    with tempfile.TemporaryDirectory() as folder:
        model_dir, texts = model_and_texts(Path(folder))
        models = Models(model_dir, Path(folder))
        print_header(header)
        for threads in positive_integers("threads"):
            for beam_size in positive_integers("beams"):
                settings = {name: models.settings(name, beam_size, threads) for name in names}
                with start_workers("benchmarks.decoding.worker", settings, pythons()) as peers:
                    for text, sentences in texts.items():
                        for batch_size in positive_integers("batches"):
                            case = {
                                "text": text,
                                "threads": threads,
                                "beam": beam_size,
                                "batch": batch_size,
                            }
                            for row in rows_of(
                                case, measure(peers, sentences, batch_size), len(sentences)
                            ):
                                rows.append(row)
                                print_row(row)
    if FLAGS.csv:
        write_csv(FLAGS.csv, COLUMNS, rows)


if __name__ == "__main__":
    app.run(main)
