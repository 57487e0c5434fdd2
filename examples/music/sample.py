"""Continues a piano performance, or starts one, with a model that score2perf trained.

    python -m examples.music.sample --checkpoint=unconditional_model_16.ckpt \
      --hparams=num_hidden_layers=16 --primer=x.mid --output=y.mid --picture=y.png
"""

import importlib.util
import os

# Must be set before TensorFlow is imported; hides its start-up log.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
from absl import app, flags

from examples.music import performance
from t2t_relpos import CausalLM
from t2t_relpos.decoding import TopPSampler
from t2t_relpos.t2t import config_from_hparams, load_t2t_weights, parse_hparams
from trainer import atomic_files, errors, import_t2t
from trainer.streams import write_line

FLAGS = flags.FLAGS


def define_flags():
    flags.DEFINE_string("checkpoint", None, "Checkpoint of tensor2tensor, or its directory.")
    flags.DEFINE_string("hparams_set", "transformer_tpu", "Name of the model's hparams set.")
    flags.DEFINE_string("hparams", "", "Changes to the hparams set: key=value,key=value.")
    flags.DEFINE_string("primer", None, "MIDI file to continue. Default: start from nothing.")
    flags.DEFINE_string("output", None, "MIDI file to write.")
    flags.DEFINE_string("picture", None, "PNG file to write: a piano roll. Needs matplotlib.")
    flags.DEFINE_integer("events", 1024, "Number of events to add.", lower_bound=1)
    flags.DEFINE_integer("max_primer", 1024, "Longer primers are cut to this number of events.")
    flags.DEFINE_float("temperature", 1.0, "Temperature of the sampling.", lower_bound=0.01)
    flags.DEFINE_integer("seed", 1, "Seed of the sampling.")
    flags.mark_flags_as_required(["checkpoint", "output"])


def load_model(checkpoint, hparams_set, hparams):
    """Returns the `CausalLM` of a checkpoint of tensor2tensor."""
    values = parse_hparams(hparams_set, hparams)
    config = config_from_hparams(values, performance.VOCAB_SIZE, language_model=True)
    model = CausalLM(config=config)
    arrays = import_t2t.read_checkpoint(import_t2t.find_checkpoint(checkpoint))
    load_t2t_weights(model, arrays, values["symbol_modality_num_shards"])
    return model


def read_primer(path, max_events):
    """Returns the ids of at most `max_events` events of a MIDI file. Prints all that is removed."""
    notes, counts = performance.read_midi(path)
    ids = performance.encode(notes)
    counts["Events removed at the end (--max_primer)"] = max(0, len(ids) - max_events)
    print_counts(path, counts, len(notes))
    if not ids:
        write_line(f"{path}: no notes for a piano, so the performance starts from nothing")
    return ids[:max_events]


def print_counts(path, counts, num_notes):
    for text, count in {**counts, "Notes": num_notes}.items():
        if count:
            write_line(f"{path}: {text}: {count}")


def write_picture(path, notes, primer):
    """Writes a piano roll, with a line where the notes `primer` end."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), dpi=150, layout="constrained")
    axes = figure.subplots()
    for note in notes:
        axes.barh(note.pitch, note.end - note.start, 0.9, note.start, color="tab:blue")
    axes.axvline(max((note.end for note in primer), default=0), color="tab:gray")
    axes.set(xlabel="seconds", ylabel="key")
    with atomic_files.atomic_file(path) as temporary:
        figure.savefig(temporary)
    print(f"Wrote {path}")


@errors.errors_as_exit_codes("music.sample", (ValueError, ImportError))
def main(argv):
    if FLAGS.picture and importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--picture needs matplotlib. Run `pip install '.[plots]'`.")
    primer = read_primer(FLAGS.primer, FLAGS.max_primer) if FLAGS.primer else []
    model = load_model(FLAGS.checkpoint, FLAGS.hparams_set, FLAGS.hparams)
    sampler = TopPSampler(1.0, temperature=FLAGS.temperature, seed=FLAGS.seed)
    prompt = np.array([primer], "int32")
    (ids,) = model.generate(prompt, sampler, len(primer) + FLAGS.events).tolist()
    notes, counts = performance.decode(ids)
    performance.write_midi(FLAGS.output, notes)
    print_counts(FLAGS.output, counts, len(notes))
    if FLAGS.picture:
        write_picture(FLAGS.picture, notes, performance.decode(primer)[0])


if __name__ == "__main__":
    define_flags()
    app.run(main)
