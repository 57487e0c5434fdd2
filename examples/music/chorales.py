"""Trains language models on Bach's chorales with three kinds of positions, and compares them.

    python -m examples.music.chorales
    python -m examples.music.chorales --positions=relative_v2 --seeds=1 --steps=20 --width=16

The chorales are those with four voices in the package music21. Time is a grid of sixteenths. The
ids of a sixteenth are the keys that sound in soprano, alto, tenor and bass, or a rest. Prints the
loss per id on chorales that are not trained on, in nats. Every run writes its result to
--output_dir. Rerun the same command to resume: finished runs are not repeated.
"""

import collections
import hashlib
import json
import math
import os
import re
import statistics
import sys
import time
from pathlib import Path

# Must be set before TensorFlow is imported; hides its start-up log.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from absl import app, flags

from t2t_relpos import CausalLM
from t2t_relpos.models import TransformerConfig
from trainer import atomic_files

VOICES, STEPS_PER_BEAT = 4, 4
REST, LOWEST_KEY, HIGHEST_KEY = 2, 36, 81
VOCAB_SIZE = REST + 1 + HIGHEST_KEY - LOWEST_KEY + 1
# Ids of a training example: 64 sixteenths.
LENGTH = 256
# Settings of `TransformerConfig` that differ. Those of tables are tensor2tensor's defaults.
POSITIONS = {
    "sinusoidal": {},
    "relative": {"share_heads": True, "use_value_table": True},
    "relative_v2": {"share_heads": False, "use_value_table": False},
}
FLAGS = flags.FLAGS


def define_flags():
    """Defines the flags of this program."""
    flags.DEFINE_list("positions", list(POSITIONS), "Comma-separated positions to train.")
    flags.DEFINE_list("seeds", ["1", "2", "3"], "Comma-separated seeds; one run of each.")
    flags.DEFINE_integer("steps", 600, "Number of training steps.", lower_bound=1)
    flags.DEFINE_integer("batch_size", 16, "Examples per step.", lower_bound=1)
    flags.DEFINE_integer("width", 128, "Width of the models, a multiple of 8.", lower_bound=8)
    flags.DEFINE_integer("layers", 2, "Number of layers.", lower_bound=1)
    flags.DEFINE_string("output_dir", "runs/chorales", "Directory for ids and results.")


def parse_score(path):
    """Returns (ids of a score, None) or (None, the reason why it is not used)."""
    import music21

    parts = music21.corpus.parse(path).parts
    if len(parts) != VOICES:
        return None, f"{len(parts)} parts"
    end = max(float(part.flatten().highestTime) for part in parts)
    ids = np.full((math.ceil(end * STEPS_PER_BEAT), VOICES), REST)
    for voice, part in enumerate(parts):
        for note in part.flatten().notes:
            if note.isChord or not LOWEST_KEY <= note.pitch.midi <= HIGHEST_KEY:
                return None, f"a chord, or a key outside {LOWEST_KEY} to {HIGHEST_KEY}"
            start, end = note.offset, note.offset + note.quarterLength
            # A note that sounds at no point of the grid leaves no id.
            rows = slice(*(math.ceil(float(beats) * STEPS_PER_BEAT) for beats in (start, end)))
            ids[rows, voice] = note.pitch.midi - LOWEST_KEY + REST + 1
    return ids.flatten().tolist(), None


def read_chorales(cache):
    """Returns {name: ids} of the chorales and {reason: names} of other scores, from a JSON file.

    If the file does not exist, parses music21's scores and writes it. A score is not used if it has
    other than four parts, or is an earlier one, perhaps in another key.
    """
    if not cache.is_file():
        from music21 import common

        chorales, unused, known = {}, collections.defaultdict(list), {}
        paths = sorted((common.getCorpusFilePath() / "bach").glob("bwv*"))
        for path in paths:
            ids, reason = parse_score(path)
            if ids:
                key = next(i for i in ids if i != REST)
                intervals = tuple(None if i == REST else i - key for i in ids)
                if known.setdefault(intervals, path.name) != path.name:
                    ids, reason = None, "same as an earlier score"
            if ids:
                chorales[path.name] = ids
            else:
                unused[reason].append(path.name)
        atomic_files.write_text(cache, json.dumps({"chorales": chorales, "unused": unused}))
    content = json.loads(cache.read_text())
    return content["chorales"], content["unused"]


def is_validation(name):
    """Returns whether a score is for validation: about 20 %, by a hash of its BWV number."""
    number = re.match(r"bwv\d+(\.\d+)?", name)[0]
    return int(hashlib.sha256(number.encode()).hexdigest(), 16) % 5 == 0


def sample_examples(chorales, count, rng):
    """Returns random ids `[count, LENGTH]`. Every start at a soprano is equally likely."""
    sizes = np.array([len(ids) - LENGTH + VOICES for ids in chorales])
    chosen = rng.choice(len(chorales), count, p=sizes / sizes.sum())
    starts = VOICES * rng.integers(0, sizes[chosen] // VOICES)
    return np.array([chorales[i][s : s + LENGTH] for i, s in zip(chosen, starts)], "int32")


def validation_windows(chorales):
    """Returns ids `[W, LENGTH]` and weights. Weights are 1 where an id is scored, once for each.

    An id is scored with at least LENGTH / 2 ids before it, or with all of its chorale.
    """
    windows, weights = [], []
    for ids in chorales:
        scored = 0
        while scored < len(ids):
            start = min(max(scored - LENGTH // 2, 0), len(ids) - LENGTH)
            windows.append(ids[start : start + LENGTH])
            weights.append(np.arange(start, start + LENGTH) >= scored)
            scored = start + LENGTH
    return np.array(windows, "int32"), np.array(weights, "float64")


def train(position, seed, chorales):
    """Trains a model. Returns its validation loss, parameters, training seconds and settings."""
    keras.utils.set_random_seed(seed)
    config = TransformerConfig(
        vocab_size=VOCAB_SIZE,
        num_decoder_layers=FLAGS.layers,
        hidden_dim=FLAGS.width,
        intermediate_dim=4 * FLAGS.width,
        num_heads=4,
        position=position,
        max_relative_position=LENGTH // 2,
        **POSITIONS[position],
    )
    model, warmup = CausalLM(config=config), max(1, FLAGS.steps // 10)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, FLAGS.steps - warmup, warmup_target=2e-3, warmup_steps=warmup
    )
    model.compile(
        keras.optimizers.Adam(rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    training = [ids for name, ids in chorales.items() if not is_validation(name)]
    count = FLAGS.steps * FLAGS.batch_size
    examples = sample_examples(training, count, np.random.default_rng(seed))
    started = time.monotonic()
    model.fit(examples, examples, batch_size=FLAGS.batch_size, shuffle=False, verbose=2)
    seconds = time.monotonic() - started
    windows, weights = validation_windows(
        [ids for name, ids in chorales.items() if is_validation(name)]
    )
    logits = model.predict(windows, FLAGS.batch_size, verbose=0).astype("float64")
    losses = np.log(np.exp(logits).sum(-1))
    losses -= np.take_along_axis(logits, windows[..., None], -1)[..., 0]
    return {
        "loss": (losses * weights).sum() / weights.sum(),
        "parameters": model.count_params(),
        "seconds": round(seconds),
        "settings": _settings(),
    }


def _settings():
    return {name: FLAGS[name].value for name in ("steps", "batch_size", "width", "layers")}


def format_table(results):
    """Returns a Markdown table of {(position, seed): result} by position and seed."""
    lines = ["| Positions | Parameters |" + "".join(f" Seed {s} |" for s in FLAGS.seeds)]
    lines = [f"{lines[0]} Mean ± std |", "| --- |" + " ---: |" * (len(FLAGS.seeds) + 2)]
    for position in FLAGS.positions:
        runs = [results[position, seed] for seed in FLAGS.seeds]
        losses = [run["loss"] for run in runs]
        spread = f" ± {statistics.stdev(losses):.4f}" if len(losses) > 1 else ""
        cells = "".join(f" {loss:.4f} |" for loss in losses)
        mean = f"{statistics.fmean(losses):.4f}{spread}"
        lines.append(f"| {position} | {runs[0]['parameters']:,} |{cells} {mean} |")
    return "\n".join(lines)


def main(argv):
    unknown = ", ".join(set(FLAGS.positions) - set(POSITIONS))
    if unknown or len(argv) > 1:
        raise app.UsageError(
            f"--positions must be among {','.join(POSITIONS)}, got {unknown or argv[1]}."
        )
    folder, results = Path(FLAGS.output_dir), {}
    folder.mkdir(parents=True, exist_ok=True)
    chorales, unused = read_chorales(folder / "chorales.json")
    used = len(chorales)
    print(f"Scores: {used + sum(map(len, unused.values()))}, used: {used}")
    for reason, names in sorted(unused.items(), key=lambda item: -len(item[1])):
        print(f"Not used: {len(names)} ({reason})")
    validation = sum(map(is_validation, chorales))
    print(f"Training: {used - validation} chorales. Validation: {validation} chorales.", flush=True)
    for seed in FLAGS.seeds:
        for position in FLAGS.positions:
            path = folder / f"{position}-seed={seed}.json"
            if not path.is_file():
                result = train(position, int(seed), chorales)
                atomic_files.write_text(path, json.dumps(result))
            result = results[position, seed] = json.loads(path.read_text())
            if result["settings"] != _settings():
                sys.exit(f"chorales: {path} has other settings. Choose another --output_dir.")
            print(f"{position}, seed {seed}: {result['loss']:.4f}", flush=True)
    print("\nValidation loss per id in nats\n" + format_table(results))


if __name__ == "__main__":
    define_flags()
    app.run(main)
