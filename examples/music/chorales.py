"""Trains language models on Bach's chorales with three kinds of positions, and compares them.

    python -m examples.music.chorales
    python -m examples.music.chorales --positions=relative_v2 --seeds=1 --steps=20 --width=16

The chorales are those with four voices in the package music21. The ids of each sixteenth are the
keys that sound in soprano, alto, tenor and bass, or rests. Held and repeated keys have the same
ids, and notes between two sixteenths have none. Prints the loss per id on chorales that are not
trained on. Every run writes its result to --output_dir. Rerun the command to resume.
"""

import collections
import hashlib
import json
import math
import os
import re
import statistics
from pathlib import Path

# Must be set before TensorFlow is imported; hides its start-up log.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from absl import app, flags

from t2t_relpos import CausalLM
from t2t_relpos.models import TransformerConfig
from trainer import atomic_files, errors
from trainer.streams import write_line

VOICES, STEPS_PER_BEAT = 4, 4
REST, LOWEST_KEY, HIGHEST_KEY = 2, 36, 81
VOCAB_SIZE = REST + 1 + HIGHEST_KEY - LOWEST_KEY + 1
# Ids of a training example (64 sixteenths), and examples of a training step.
LENGTH, BATCH_SIZE = 256, 8
# Settings of `TransformerConfig` that differ. Those of tables are tensor2tensor's defaults.
POSITIONS = {
    "sinusoidal": {},
    "relative": {"share_heads": True, "use_value_table": True},
    "relative_v2": {"share_heads": False, "use_value_table": False},
}
FLAGS = flags.FLAGS


def define_flags():
    flags.DEFINE_list("positions", list(POSITIONS), "Comma-separated positions to train.")
    flags.DEFINE_list("seeds", ["1", "2", "3"], "Comma-separated seeds; one run of each.")
    flags.DEFINE_integer("steps", 1000, "Number of training steps.", lower_bound=1)
    flags.DEFINE_integer("width", 128, "Width of the models, a multiple of 8.", lower_bound=8)
    flags.DEFINE_string("output_dir", "runs/chorales", "Directory for ids and results.")


def parse_score(path):
    """Returns the ids of a score with four parts. Raises ValueError with the reason for others."""
    import music21

    parts = music21.corpus.parse(path).parts
    if len(parts) != VOICES:
        raise ValueError(f"other than {VOICES} parts")
    end = max(part.flatten().highestTime for part in parts)
    ids = np.full((math.ceil(end * STEPS_PER_BEAT), VOICES), REST)
    for voice, part in enumerate(parts):
        for note in part.flatten().notes:
            if note.isChord or not LOWEST_KEY <= note.pitch.midi <= HIGHEST_KEY:
                raise ValueError(f"a chord, or a key outside {LOWEST_KEY} to {HIGHEST_KEY}")
            start, end = note.offset, note.offset + note.quarterLength
            rows = slice(*(math.ceil(beats * STEPS_PER_BEAT) for beats in (start, end)))
            ids[rows, voice] = note.pitch.midi - LOWEST_KEY + REST + 1
    return ids.flatten().tolist()


def read_chorales(cache):
    """Returns ({name: ids}, {reason: names of unused scores}). Writes them to a JSON file."""
    if not cache.is_file():
        from music21.common import getCorpusFilePath

        chorales, unused, known = {}, collections.defaultdict(list), {}
        for path in sorted((getCorpusFilePath() / "bach").glob("bwv*")):
            try:
                ids = parse_score(path)
                key = next(i for i in ids if i != REST)
                intervals = tuple(None if i == REST else i - key for i in ids)
                if known.setdefault(intervals, path) != path:
                    raise ValueError("equal to an earlier score, perhaps in another key")
                chorales[path.name] = ids
            except ValueError as reason:
                unused[str(reason)].append(path.name)
        atomic_files.write_text(cache, json.dumps([chorales, unused]))
    return json.loads(cache.read_text())


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
    """Trains a model. Returns its validation loss and number of parameters."""
    keras.utils.set_random_seed(seed)
    config = TransformerConfig(
        vocab_size=VOCAB_SIZE,
        num_decoder_layers=2,
        hidden_dim=FLAGS.width,
        intermediate_dim=4 * FLAGS.width,
        num_heads=4,
        position=position,
        max_relative_position=LENGTH // 2,
        **POSITIONS[position],
    )
    model, warmup = CausalLM(config=config), max(1, FLAGS.steps // 10)
    schedule = keras.optimizers.schedules.CosineDecay
    rate = schedule(0.0, FLAGS.steps - warmup, warmup_target=2e-3, warmup_steps=warmup)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, jit_compile=False)
    split = {True: [], False: []}
    for name, ids in chorales.items():
        split[is_validation(name)].append(ids)
    count = FLAGS.steps * BATCH_SIZE
    examples = sample_examples(split[False], count, np.random.default_rng(seed))
    model.fit(examples, examples, batch_size=BATCH_SIZE, shuffle=False, verbose=2)
    windows, weights = validation_windows(split[True])
    logits = model.predict(windows, BATCH_SIZE, verbose=0).astype("float64")
    losses = np.log(np.exp(logits).sum(-1, keepdims=True))
    losses -= np.take_along_axis(logits, windows[..., None], -1)
    return {"loss": np.average(losses[..., 0], weights=weights), "parameters": model.count_params()}


def format_table(results):
    """Returns a Markdown table of {(position, seed): result} by position and seed."""
    seeds = " | ".join(f"Seed {seed}" for seed in FLAGS.seeds)
    lines = [f"| Positions | Parameters | {seeds} | Mean |"]
    lines.append("| --- |" + " ---: |" * (len(FLAGS.seeds) + 2))
    for position in FLAGS.positions:
        runs = [results[position, seed] for seed in FLAGS.seeds]
        losses = [run["loss"] for run in runs]
        cells = " | ".join(f"{loss:.4f}" for loss in [*losses, statistics.fmean(losses)])
        lines.append(f"| {position} | {runs[0]['parameters']:,} | {cells} |")
    return "\n".join(lines)


@errors.errors_as_exit_codes("music.chorales")
def main(argv):
    unknown = ", ".join(set(FLAGS.positions) - set(POSITIONS))
    if unknown or len(argv) > 1:
        names = ",".join(POSITIONS)
        raise app.UsageError(f"--positions must be among {names}, got {unknown or argv[1]}.")
    folder, results = Path(FLAGS.output_dir), {}
    folder.mkdir(parents=True, exist_ok=True)
    chorales, unused = read_chorales(folder / "chorales.json")
    write_line(f"Scores: {len(chorales) + sum(map(len, unused.values()))}")
    for reason, names in unused.items():
        write_line(f"Not used, {reason}: {len(names)}")
    validation = sum(map(is_validation, chorales))
    write_line(f"Chorales for training: {len(chorales) - validation}, for validation: {validation}")
    for seed in FLAGS.seeds:
        for position in FLAGS.positions:
            path = folder / f"{position}-width={FLAGS.width}-steps={FLAGS.steps}-seed={seed}.json"
            if not path.is_file():
                atomic_files.write_text(path, json.dumps(train(position, int(seed), chorales)))
            result = results[position, seed] = json.loads(path.read_text())
            write_line(f"{position}, seed {seed}: {result['loss']:.4f}")
    print("\nValidation loss per id in nats\n" + format_table(results))


if __name__ == "__main__":
    define_flags()
    app.run(main)
