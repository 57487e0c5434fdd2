"""Compares the training speed of this project and PyTorch.

    python -m benchmarks.training --train_source=train.en.gz --train_target=train.de.gz
    python -m benchmarks.training --train_source=train.en.gz --train_target=train.de.gz \
        --preset=shaw_base --vocab_size=32000 --batch_tokens=2048

Systems:
    trainer              this project
    trainer bfloat16     the same in mixed precision
    trainer sinusoidal   the same with sinusoidal instead of relative positions
    torch                torch.nn.Transformer, pre-norm, with sinusoidal positions and fused Adam

All systems train a new model on the same batches of ids in memory. A step is forward, backward and
update, with dropout and label smoothing. Each system has a worker process. The workers take turns,
--steps steps each, and every run has new batches. The first run traces graphs and is not counted.

Columns, medians over runs with bootstrapped 95 % intervals:
    tokens/s         source and target tokens per second, without padding
    time / trainer   time of a step, divided by that of `trainer` in the same run
    MB               peak memory
"""

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from absl import app, flags

from benchmarks.tables import format_median, print_cells, print_header
from benchmarks.workers import ask_in_turns
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
    "torch": {"kind": "torch"},
}
MAX_LENGTH, LABEL_SMOOTHING = 256, 0.1
RELATIVE = sorted(name for name, settings in PRESETS.items() if settings["position"] == "relative")
flags.DEFINE_enum("preset", "tiny", RELATIVE, "Architecture.")
flags.DEFINE_integer("vocab_size", 8000, "Size of the vocabulary.", lower_bound=4)
flags.DEFINE_string("train_source", None, "Sentences, one per line; may be .gz.", required=True)
flags.DEFINE_string("train_target", None, "Translations of --train_source.", required=True)
flags.DEFINE_integer("batch_tokens", 4096, "Longer side of a batch, with padding.", lower_bound=1)
flags.DEFINE_integer("steps", 5, "Steps in a turn.", lower_bound=1)
flags.DEFINE_integer("runs", 15, "Measurements of each system.", lower_bound=1)
flags.DEFINE_integer("threads", 1, "Threads per op.", lower_bound=1)
flags.DEFINE_list("systems", list(SYSTEMS), "Systems to measure. `trainer` is always included.")
flags.register_validator("systems", set(SYSTEMS).issuperset, f"Expected {', '.join(SYSTEMS)}.")


def make_batches(vocab_size: int, batch_tokens: int, count: int):
    """Returns the first batches of a training run on the text of the flags, `([B, S], [B, T])`."""
    try:
        corpus = read_text(FLAGS.train_source, FLAGS.train_target)
        tokenizer = SentencePieceTokenizer.train(corpus.sentences(), vocab_size)
    except ValueError as error:
        raise app.UsageError(str(error)) from error
    encoded = encode_pairs(corpus, Tokenizers.shared(tokenizer))
    dataset = training_batches(encoded, batch_tokens, MAX_LENGTH, seed=1)
    return [(ids["inputs"].numpy(), ids["targets"].numpy()) for ids in dataset.take(count)]


def write_batches(path: Path, batches):
    """Writes batches as arrays `inputs_0`, `targets_0`, `inputs_1`, ..."""
    arrays = {f"inputs_{i}": inputs for i, (inputs, _) in enumerate(batches)}
    arrays |= {f"targets_{i}": targets for i, (_, targets) in enumerate(batches)}
    np.savez(path, **arrays)


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


def measure(batches) -> dict[str, list[dict]]:
    """Returns the answers of every system's worker to all runs but the first."""
    names = [name for name in SYSTEMS if name == "trainer" or name in FLAGS.systems]
    runs = [[i, i + FLAGS.steps] for i in range(0, len(batches), FLAGS.steps)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "batches.npz"
        write_batches(file, batches)
        settings = {name: worker_settings(name, file) for name in names}
        (answers,) = ask_in_turns("benchmarks.training.worker", settings, [runs])
    return {name: of_runs[1:] for name, of_runs in answers.items()}


def main(_):
    batches = make_batches(FLAGS.vocab_size, FLAGS.batch_tokens, (FLAGS.runs + 1) * FLAGS.steps)
    measured = batches[FLAGS.steps :]
    runs = [measured[i : i + FLAGS.steps] for i in range(0, len(measured), FLAGS.steps)]
    tokens = np.array([count_tokens(run) for run in runs])
    padding = 1 - count_tokens(measured) / sum(ids.size for batch in measured for ids in batch)
    sizes = f"{np.mean(tokens) / FLAGS.steps:.0f} tokens/step, {padding:.0%} padding"
    print(f"{FLAGS.preset}, {FLAGS.runs} runs of {FLAGS.steps} steps, {sizes}\n")
    answers = measure(batches)
    if not all(np.isfinite(a["result"]).all() for each in answers.values() for a in each):
        sys.exit("benchmarks.training: all losses must be finite.")
    print_header(["system", "tokens/s", "time / trainer", "MB"])
    seconds = {name: np.array([a["seconds"] for a in each]) for name, each in answers.items()}
    for name, times in seconds.items():
        megabytes = max(answer["megabytes"] for answer in answers[name])
        rate = format_median(tokens / times, digits=0)
        print_cells([name, rate, format_median(times / seconds["trainer"]), f"{megabytes:.0f}"])


if __name__ == "__main__":
    app.run(main)
