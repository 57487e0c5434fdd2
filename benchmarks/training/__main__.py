"""Compares the training speed of this project, OpenNMT-tf and PyTorch.

    python -m benchmarks.training --train_source=train.en.gz --train_target=train.de.gz \
        --opennmt_python=ONMT/bin/python
    python -m benchmarks.training --train_source=train.en.gz --train_target=train.de.gz \
        --preset=shaw_base --vocab_size=32000 --batch_tokens=2048

Systems:
    trainer              this project
    trainer bfloat16     the same in mixed precision
    trainer sinusoidal   the same with sinusoidal instead of relative positions
    opennmt              OpenNMT-tf 2.32 in the environment of --opennmt_python
    torch                torch.nn.Transformer, pre-norm, with sinusoidal positions and fused Adam

All systems train a new model on the same batches of ids in memory. A step is forward, backward and
update, with dropout and label smoothing. Each system has a worker process. The workers take turns,
--steps steps each, and every run has new batches. The first run traces graphs and is not counted.
In OpenNMT-tf, all heads of a layer share one table, regardless of the preset.

Columns, medians over runs with bootstrapped 95 % intervals:
    tokens/s         source and target tokens per second, without padding
    time / trainer   time of a step, divided by that of `trainer` in the same run
    MB               peak memory
"""

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from absl import app, flags

from benchmarks.flag_checks import check_no_arguments, check_values
from benchmarks.tables import format_median, print_cells, print_header
from benchmarks.workers import ask_in_turns, available, start_workers
from t2t_relpos.models import PRESETS, TransformerConfig
from trainer.data.batching import training_batches
from trainer.data.encoding import encode_pairs
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.data.text_files import read_text
from trainer.data.tokenizer import Tokenizers

FLAGS = flags.FLAGS
SYSTEMS = {
    "trainer": {"kind": "trainer", "precision": "float32"},
    "trainer bfloat16": {"kind": "trainer", "precision": "bfloat16"},
    "trainer sinusoidal": {"kind": "trainer", "precision": "float32", "position": "sinusoidal"},
    "opennmt": {"kind": "opennmt"},
    "torch": {"kind": "torch"},
}
MAX_LENGTH, LABEL_SMOOTHING = 256, 0.1
# The presets that OpenNMT-tf supports too.
RELATIVE = sorted(name for name, settings in PRESETS.items() if settings["position"] == "relative")
flags.DEFINE_enum("preset", "tiny", RELATIVE, "Architecture.")
flags.DEFINE_integer(
    "vocab_size",
    8000,
    "Size of the SentencePiece vocabulary, which is trained on the training text.",
    lower_bound=4,
)
flags.DEFINE_string(
    "train_source", None, "Source sentences, one per line; may be .gz.", required=True
)
flags.DEFINE_string("train_target", None, "Translations of --train_source.", required=True)
flags.DEFINE_integer(
    "batch_tokens",
    4096,
    "Tokens per batch on the longer side, including padding.",
    lower_bound=1,
)
flags.DEFINE_integer("steps", 5, "Steps in a turn.", lower_bound=1)
flags.DEFINE_integer("runs", 15, "Measurements of each system.", lower_bound=1)
flags.DEFINE_integer("threads", 1, "Threads per op.", lower_bound=1)
flags.DEFINE_list("systems", list(SYSTEMS), "Systems to measure. `trainer` is always included.")
flags.DEFINE_string("opennmt_python", None, "Python of an environment with OpenNMT-tf.")
flags.DEFINE_string(
    "torch_python",
    sys.executable if importlib.util.find_spec("torch") else None,
    "Python of an environment with PyTorch. Default: the running one, if it has PyTorch.",
)


def make_batches(vocab_size: int, batch_tokens: int, count: int):
    """Returns the first batches of a training run on the text of the flags, `([B, S], [B, T])`.

    Args:
        vocab_size: size of the joint vocabulary, which is trained on the text.
        batch_tokens: maximum tokens per batch on the longer side, including padding.
        count: number of batches.

    Raises:
        app.UsageError: if the files can't be read, differ in their number of lines, or are too
            small for the vocabulary.
    """
    try:
        corpus = read_text(FLAGS.train_source, FLAGS.train_target)
        tokenizer = SentencePieceTokenizer.train(corpus.sentences(), vocab_size)
        encoded = encode_pairs(corpus, Tokenizers.shared(tokenizer))
    except ValueError as error:
        raise app.UsageError(str(error)) from error
    dataset = training_batches(encoded, batch_tokens, MAX_LENGTH, seed=1)
    return [(ids["inputs"].numpy(), ids["targets"].numpy()) for ids in dataset.take(count)]


def write_batches(path: Path, batches):
    """Writes batches as arrays `inputs_0`, `targets_0`, `inputs_1`, ..."""
    arrays = {f"inputs_{i}": inputs for i, (inputs, _) in enumerate(batches)}
    arrays |= {f"targets_{i}": targets for i, (_, targets) in enumerate(batches)}
    np.savez(path, **arrays)


def pythons():
    return {name: FLAGS[f"{name}_python"].value for name in ("opennmt", "torch")}


def chosen_systems() -> list[str]:
    """Returns the systems of the flags that can run, `trainer` first."""
    names = [name for name in SYSTEMS if name == "trainer" or name in FLAGS.systems]
    return available(names, pythons())


def worker_settings(name: str, batches_file: Path) -> dict:
    """Returns the settings of a system's worker."""
    position = SYSTEMS[name].get("position", "relative")
    config = TransformerConfig.from_preset(
        FLAGS.preset, vocab_size=FLAGS.vocab_size, position=position
    )
    return SYSTEMS[name] | {
        "batches": str(batches_file),
        "threads": FLAGS.threads,
        "preset": FLAGS.preset,
        "max_length": MAX_LENGTH,
        "label_smoothing": LABEL_SMOOTHING,
        "config": config.to_dict(),
    }


def count_tokens(batches) -> int:
    """Returns the number of source and target ids other than padding."""
    return sum(np.count_nonzero(ids) for batch in batches for ids in batch)


def describe(runs) -> str:
    """Returns the preset and the sizes of the batches of all runs as text."""
    batches = [batch for run in runs for batch in run]
    tokens, positions = count_tokens(batches), sum(ids.size for batch in batches for ids in batch)
    return (
        f"{FLAGS.preset}, {len(runs)} runs of {FLAGS.steps} steps, "
        f"{tokens / len(batches):.0f} tokens/step, {1 - tokens / positions:.0%} padding"
    )


def measure(batches_file: Path) -> dict[str, list[dict]]:
    """Returns the answers of every system's worker to all runs but the first."""
    settings = {name: worker_settings(name, batches_file) for name in chosen_systems()}
    starts = range(0, (FLAGS.runs + 1) * FLAGS.steps, FLAGS.steps)
    with start_workers("benchmarks.training.worker", settings, pythons()) as workers:
        answers = ask_in_turns(workers, [[start, start + FLAGS.steps] for start in starts])
    return {name: of_runs[1:] for name, of_runs in answers.items()}


def main(argv):
    check_no_arguments(argv)
    check_values("systems", SYSTEMS)
    batches = make_batches(FLAGS.vocab_size, FLAGS.batch_tokens, (FLAGS.runs + 1) * FLAGS.steps)
    runs = [batches[i : i + FLAGS.steps] for i in range(FLAGS.steps, len(batches), FLAGS.steps)]
    tokens = np.array([count_tokens(run) for run in runs])
    print(describe(runs) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "batches.npz"
        write_batches(file, batches)
        answers = measure(file)
    print_header(["system", "tokens/s", "time / trainer", "MB"])
    seconds = {name: np.array([a["seconds"] for a in each]) for name, each in answers.items()}
    for name, times in seconds.items():
        megabytes = max(answer["megabytes"] for answer in answers[name])
        rate = format_median(tokens / times, digits=0)
        print_cells([name, rate, format_median(times / seconds["trainer"]), f"{megabytes:.0f}"])


if __name__ == "__main__":
    app.run(main)
