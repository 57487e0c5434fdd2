"""Whether training waits for its data: the time of a step with the input pipeline over that of replaying batches from memory.

    python benchmarks/input_pipeline.py
    python benchmarks/input_pipeline.py --train_source=train.en.gz --train_target=train.de.gz

Trains one model on the same batches both ways, in turns, in one process: a block of steps from the pipeline as `trainer.train`
builds it, a block that repeats those batches from memory, the order of the two changing from pair to pair. What the pipeline made
ahead while others were measured is thrown away before its block. Prints the median over pairs of blocks of the ratio of their
times, with a bootstrapped 95% interval, for every corpus; by default for the embedded corpus and for one of WMT's length made
of it. Exits with 1 if a median is above --bar.
"""

import itertools
import os
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
from absl import app, flags

from benchmarks.common.bootstrap import median_and_interval
from t2t_relpos.models import Transformer, TransformerConfig
from trainer.data.batching import PREFETCHED, training_batches
from trainer.data.corpora import read_synthetic
from trainer.data.corpus import Corpus, PairCorpus
from trainer.data.encoding import EncodedPairs, encode_pairs
from trainer.data.text_files import read_text
from trainer.data.tokenizers import SentencePieceTokenizer
from trainer.training.fused_adam import FusedAdam
from trainer.training.training_model import TrainingModel

FLAGS = flags.FLAGS
flags.DEFINE_multi_string(
    "train_source", [], "Text files of source sentences; given again, those of another corpus."
)
flags.DEFINE_multi_string("train_target", [], "Text files of their translations, as often.")
flags.DEFINE_integer(
    "vocab_size",
    None,
    "Pieces of each vocabulary. Default: 8000, with the embedded corpus 1000.",
    lower_bound=4,
)
flags.DEFINE_string("preset", "tiny", "The architecture.")
flags.DEFINE_integer("batch_tokens", 4096, "Tokens of the longer side in a batch.", lower_bound=1)
flags.DEFINE_integer("max_length", 256, "Longest sentence in tokens.", lower_bound=2)
flags.DEFINE_integer("blocks", 12, "Pairs of blocks that are measured.", lower_bound=1)
flags.DEFINE_integer("steps", 8, "Steps of a block.", lower_bound=1)
flags.DEFINE_integer("seed", 1, "Of weights, dropout and the order of the data.", lower_bound=0)
flags.DEFINE_float("bar", 1.03, "Largest ratio that passes.")

# Until the pipeline has made all that it makes ahead, and rests.
_SECONDS_TO_FILL = 1.0


def corpora() -> dict[str, tuple[Corpus, int]]:
    """The corpora by name, each with the size of its vocabulary."""
    if len(FLAGS.train_source) != len(FLAGS.train_target):
        raise app.UsageError("Expected --train_source and --train_target as often as each other.")
    if FLAGS.train_source:
        files = zip(FLAGS.train_source, FLAGS.train_target)
        return {
            source: (read_text(source, target), FLAGS.vocab_size or 8000)
            for source, target in files
        }
    pairs = read_synthetic("train").pairs
    joined = tuple(tuple(map(" ".join, zip(*group))) for group in zip(pairs[::2], pairs[1::2]))
    size = FLAGS.vocab_size or 1000
    return {
        "embedded corpus": (PairCorpus(pairs), size),
        "two sentences in one": (PairCorpus(joined), size),
    }


def make_model(vocab_size: int) -> TrainingModel:
    """The model, compiled with Adam."""
    keras.utils.set_random_seed(FLAGS.seed)
    model = TrainingModel(
        Transformer(TransformerConfig.from_preset(FLAGS.preset, vocab_size=vocab_size)),
        label_smoothing=0.1,
    )
    model.compile(FusedAdam(1e-4, 0.9, 0.98, 1e-9))
    model.make_train_function()
    return model


class Pipeline:
    """The batches of a run, made by the pipeline, and again from memory.

    Args:
        pairs: the encoded corpus.
    """

    def __init__(self, pairs: EncodedPairs):
        self.pairs = pairs
        self.batches = iter(self._dataset(0))
        self.step = 0

    def _dataset(self, start):
        return training_batches(self.pairs, FLAGS.batch_tokens, FLAGS.max_length, FLAGS.seed, start)

    def forget(self):
        """Throws away what was made ahead."""
        for _ in itertools.repeat(None, PREFETCHED):
            next(self.batches)
        self.step += PREFETCHED

    def replay(self, start: int):
        """The batches of a block, in memory already."""
        dataset = self._dataset(start).take(FLAGS.steps).cache()
        for _ in dataset:
            pass
        return iter(dataset)


def seconds(model: TrainingModel, batches) -> float:
    """The time of a block of training steps."""
    start = time.perf_counter()
    for _ in itertools.repeat(None, FLAGS.steps):
        float(model.train_function(batches)["loss"])
    return time.perf_counter() - start


def measure(pairs: EncodedPairs, vocab_size: int) -> list[tuple[float, float]]:
    """Seconds of every pair of blocks: from the pipeline and from memory."""
    model, pipeline = make_model(vocab_size), Pipeline(pairs)
    times = []
    for block in range(-1, FLAGS.blocks):
        replayed = pipeline.replay(pipeline.step + PREFETCHED)
        measured = {}
        for name in ("pipeline", "memory") if block % 2 else ("memory", "pipeline"):
            if name == "pipeline":
                pipeline.forget()
            else:
                time.sleep(_SECONDS_TO_FILL)
            measured[name] = seconds(model, pipeline.batches if name == "pipeline" else replayed)
        pipeline.step += FLAGS.steps
        # The first pair traces the graph.
        if block >= 0:
            times.append((measured["pipeline"], measured["memory"]))
    return times


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1]!r}.")
    print(
        f"{FLAGS.preset}, {FLAGS.batch_tokens} tokens a batch, {FLAGS.blocks} pairs of blocks of {FLAGS.steps} steps, bar {FLAGS.bar}"
    )
    print(
        "| corpus | pairs | tokens a pair | ms a step, pipeline | ms a step, memory | ratio | 95% interval |\n|"
        + " --- |" * 7
    )
    passed = True
    for name, (corpus, size) in corpora().items():
        tokenizer = SentencePieceTokenizer.train(corpus.sentences(), size)
        pairs = encode_pairs(corpus, tokenizer)
        times = measure(pairs, tokenizer.vocab_size)
        ratios = [piped / replayed for piped, replayed in times]
        ratio, low, high = median_and_interval(ratios)
        medians = [1000 * statistics.median(column) / FLAGS.steps for column in zip(*times)]
        length = (len(pairs.sources.ids) + len(pairs.targets.ids)) / 2 / len(pairs)
        passed &= ratio <= FLAGS.bar
        print(
            f"| {name} | {len(pairs)} | {length:.1f} | {medians[0]:.1f} | {medians[1]:.1f} | {ratio:.3f} | {low:.3f} – {high:.3f} |",
            flush=True,
        )
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    app.run(main)
