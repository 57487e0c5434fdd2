"""Measures whether training waits for the input pipeline.

    python -m benchmarks.training.input_pipeline
    python -m benchmarks.training.input_pipeline --train_source=train.en.gz \
        --train_target=train.de.gz

Trains one model on the same batches from the pipeline of `trainer.train` and from memory. The two
take turns, --steps steps each, in alternating order. Batches that the pipeline prefetched in the
meantime are dropped. Prints the median ratio of their times with its bootstrapped 95 % interval,
for each corpus. Default corpora: the synthetic corpus, and the same with adjacent pairs joined,
whose sentences are as long as those of WMT. Exits with status 1 if a median exceeds --max_ratio.
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
from benchmarks.common.flag_checks import check_no_arguments
from benchmarks.common.tables import print_cells, print_header
from examples.synthetic_corpus import generate
from t2t_relpos.models import Transformer, TransformerConfig
from trainer.data.batching import PREFETCHED, training_batches
from trainer.data.corpus import Corpus, PairCorpus
from trainer.data.encoding import EncodedPairs, encode_pairs
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.data.text_files import read_text
from trainer.training.optimizer import FusedAdam
from trainer.training.training_model import TrainingModel

FLAGS = flags.FLAGS
flags.DEFINE_multi_string("train_source", [], "Source sentences. Repeat for more corpora.")
flags.DEFINE_multi_string("train_target", [], "Translations of each --train_source.")
flags.DEFINE_integer(
    "vocab_size",
    None,
    "Size of each vocabulary. Default: 8000, or 1000 for the synthetic corpus.",
    lower_bound=4,
)
flags.DEFINE_string("preset", "tiny", "Architecture.")
flags.DEFINE_integer("batch_tokens", 4096, "Tokens per batch on the longer side.", lower_bound=1)
flags.DEFINE_integer("max_length", 256, "Maximum sentence length in tokens.", lower_bound=2)
flags.DEFINE_integer("runs", 12, "Measurements of the pipeline and of memory.", lower_bound=1)
flags.DEFINE_integer("steps", 8, "Steps in a turn.", lower_bound=1)
flags.DEFINE_integer("seed", 1, "Seed of weights, dropout and data order.", lower_bound=0)
flags.DEFINE_float("max_ratio", 1.03, "Largest ratio that passes.")

# Time in which the pipeline fills its prefetch buffer, so that it is idle while the model trains
# from memory.
_SECONDS_TO_FILL = 1.0
HEADER = ("corpus", "pairs", "tokens/pair", "pipeline ms/step", "memory ms/step", "ratio")


def read_corpora() -> dict[str, tuple[Corpus, int]]:
    """Returns each corpus and its vocabulary size by name."""
    if len(FLAGS.train_source) != len(FLAGS.train_target):
        raise app.UsageError(
            "--train_source and --train_target must be given equally often. Received: "
            f"{len(FLAGS.train_source)} and {len(FLAGS.train_target)} times."
        )
    if FLAGS.train_source:
        files, size = zip(FLAGS.train_source, FLAGS.train_target), FLAGS.vocab_size or 8000
        return {source: (read_text(source, target), size) for source, target in files}
    pairs, size = tuple(generate("train")), FLAGS.vocab_size or 1000
    joined = tuple(tuple(map(" ".join, zip(*group))) for group in zip(pairs[::2], pairs[1::2]))
    return {
        "synthetic": (PairCorpus(pairs), size),
        "synthetic, joined pairs": (PairCorpus(joined), size),
    }


def make_model(vocab_size: int) -> TrainingModel:
    """Returns a new model, compiled with Adam."""
    keras.utils.set_random_seed(FLAGS.seed)
    config = TransformerConfig.from_preset(FLAGS.preset, vocab_size=vocab_size)
    model = TrainingModel(Transformer(config), label_smoothing=0.1)
    model.compile(FusedAdam(1e-4, 0.9, 0.98, 1e-9))
    model.make_train_function()
    return model


class Pipeline:
    """The batches of a training run, from the pipeline and from memory.

    Args:
        pairs: the encoded corpus.
    """

    def __init__(self, pairs: EncodedPairs):
        self.pairs = pairs
        self.batches = iter(self._make_dataset(0))
        self.step = 0

    def _make_dataset(self, start):
        return training_batches(self.pairs, FLAGS.batch_tokens, FLAGS.max_length, FLAGS.seed, start)

    def drop_prefetched(self):
        """Skips the batches in the prefetch buffer."""
        for _ in range(PREFETCHED):
            next(self.batches)
        self.step += PREFETCHED

    def cached_batches(self, start: int):
        """Returns an in-memory iterator over the batches of the turn that starts at `start`."""
        dataset = self._make_dataset(start).take(FLAGS.steps).cache()
        for _ in dataset:
            pass
        return iter(dataset)


def time_steps(model: TrainingModel, batches) -> float:
    """Returns the seconds of the steps of a turn."""
    start = time.perf_counter()
    for _ in range(FLAGS.steps):
        float(model.train_function(batches)["loss"])
    return time.perf_counter() - start


def measure(pairs: EncodedPairs, vocab_size: int) -> list[tuple[float, float]]:
    """Returns (seconds from the pipeline, seconds from memory) of every run but the first."""
    model, pipeline, times = make_model(vocab_size), Pipeline(pairs), []
    orders = itertools.cycle([("pipeline", "memory"), ("memory", "pipeline")])
    for _, order in zip(range(FLAGS.runs + 1), orders):
        cached = pipeline.cached_batches(pipeline.step + PREFETCHED)
        seconds = {}
        for name in order:
            if name == "pipeline":
                pipeline.drop_prefetched()
                seconds[name] = time_steps(model, pipeline.batches)
            else:
                time.sleep(_SECONDS_TO_FILL)
                seconds[name] = time_steps(model, cached)
        pipeline.step += FLAGS.steps
        times.append((seconds["pipeline"], seconds["memory"]))
    # The first run traces the graph.
    return times[1:]


def main(argv):
    check_no_arguments(argv)
    print(f"{FLAGS.preset}, {FLAGS.batch_tokens} tokens per batch")
    print(f"{FLAGS.runs} runs of {FLAGS.steps} steps, maximum ratio {FLAGS.max_ratio}\n")
    print_header([*HEADER, "95 % interval"])
    passed = True
    for name, (corpus, size) in read_corpora().items():
        tokenizer = SentencePieceTokenizer.train(corpus.sentences(), size)
        pairs = encode_pairs(corpus, tokenizer)
        times = measure(pairs, tokenizer.vocab_size)
        ratio, low, high = median_and_interval([pipeline / memory for pipeline, memory in times])
        passed &= ratio <= FLAGS.max_ratio
        length = (len(pairs.sources.ids) + len(pairs.targets.ids)) / 2 / len(pairs)
        medians = [1000 * statistics.median(column) / FLAGS.steps for column in zip(*times)]
        numbers = f"{length:.1f}", *(f"{median:.1f}" for median in medians), f"{ratio:.3f}"
        print_cells([name, str(len(pairs)), *numbers, f"{low:.3f} – {high:.3f}"])
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    app.run(main)
