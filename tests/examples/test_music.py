"""Tests of `examples.music`: ids by note_seq's rules, MIDI files, and a run of each program."""

import json

import keras
import numpy as np
import pytest
from programs import start

from examples.music import chorales, performance, sample
from examples.music.performance import Note, decode, encode, read_midi, write_midi
from t2t_relpos import CausalLM
from t2t_relpos.t2t import config_from_hparams, parse_hparams
from trainer.import_t2t import write_checkpoint

# `write_checkpoint` writes embeddings in 16 shards.
SIZES = "num_hidden_layers=1,hidden_size=16,filter_size=32,num_heads=2"
SIZES += ",symbol_modality_num_shards=16"
PRIMER = [Note(0.0, 0.5, 60, 77), Note(0.5, 1.0, 64, 77), Note(1.0, 2.0, 67, 77)]


def on(key):
    return 2 + key - 21


def off(key):
    return 90 + key - 21


def shift(steps):
    return 178 + steps - 1


def velocity(value):
    return 278 + (value - 1) // 4


def rows(notes):
    """Returns (start, end, key, velocity) of notes, sorted."""
    return sorted((round(n.start, 9), round(n.end, 9), n.pitch, n.velocity) for n in notes)


def found(counts):
    return {text: count for text, count in counts.items() if count}


@pytest.mark.parametrize(
    ("notes", "ids"),
    [
        # The velocity comes before its note, if its bin changes. 61 and 64 share one.
        (
            [Note(0.0, 0.5, 60, 64), Note(0.5, 1.0, 62, 61), Note(1.0, 1.5, 64, 65)],
            [velocity(64), on(60), shift(50), off(60), on(62), shift(50), off(62), velocity(65)]
            + [on(64), shift(50), off(64)],
        ),
        # In the same step, events are those of the first note, then those of the second. The high
        # note starts 2 ms earlier, so it is the first, although its key is the second.
        (
            [Note(0.002, 0.1, 67, 80), Note(0.004, 0.1, 60, 80), Note(0.1, 0.2, 50, 80)],
            [velocity(80), on(67), on(60), shift(10), off(67), off(60), on(50), shift(10), off(50)],
        ),
        # A chord starts and ends from low to high, before a note that starts where it ends.
        (
            [Note(0.0, 0.2, 60, 80), Note(0.2, 0.3, 48, 80), Note(0.0, 0.2, 72, 80)],
            [velocity(80), on(60), on(72), shift(20), off(60), off(72), on(48), shift(10), off(48)],
        ),
        # Full seconds first. A shift of exactly a second is one event.
        (
            [Note(1.0, 3.5, 60, 1)],
            [shift(100), velocity(1), on(60), shift(100), shift(100), shift(50), off(60)],
        ),
        # Half steps are rounded up, and a note lasts at least one step.
        (
            [Note(0.005, 0.0149, 60, 80), Note(0.0049, 0.0249, 61, 80)],
            [velocity(80), on(61), shift(1), on(60), shift(1), off(61), off(60)],
        ),
        ([], []),
    ],
)
def test_encode_vectors(notes, ids):
    assert encode(notes) == ids
    assert encode(notes[::-1]) == ids


# Times in ms, and messages. The pedal is control 64, and notes of channel 9 are drums.
MESSAGES = """
    0 control_change control=64 value=127
    0 note_on note=60
    0 note_on note=64
    100 note_off note=60
    150 note_off note=64
    300 note_on note=60
    350 note_off note=60
    500 control_change control=64 value=0
    600 program_change program=40
    600 pitchwheel pitch=100
    600 note_on note=20
    600 note_on note=109
    700 note_off note=20
    700 note_off note=109
    700 note_on note=60
    700 note_off note=60
    800 note_on note=108
    900 note_off note=108
    900 note_on channel=9 note=35
    999 note_off channel=9 note=35
    999 note_on note=61
"""


def test_read_midi_applies_the_pedal_and_reports_what_it_removes(tmp_path):
    mido = pytest.importorskip("mido")
    track, now = mido.MidiTrack(), 0
    for line in MESSAGES.strip().splitlines():
        time, message = line.split(maxsplit=1)
        track.append(mido.Message.from_str(f"{message} time={int(time) - now}"))
        now = int(time)
    mido.MidiFile(type=1, ticks_per_beat=500, tracks=[track]).save(tmp_path / "x.mid")
    notes, counts = read_midi(str(tmp_path / "x.mid"))
    # The pedal extends a note until it is released, or until its key is struck again.
    of_pedal = [(0.0, 0.3, 60, 64), (0.0, 0.5, 64, 64), (0.3, 0.5, 60, 64)]
    assert rows(notes) == [*of_pedal, (0.8, 0.9, 108, 64)]
    assert found(counts) == {
        "Drum notes removed": 1,
        "Messages pitchwheel ignored": 1,
        "Notes of other instruments, now of the piano": 5,
        "Notes of zero length removed": 1,
        "Notes outside keys 21 to 108 removed": 2,
        "Notes without an end removed": 1,
    }


@pytest.mark.slow
def test_sample_continues_a_primer(tmp_path, capsys):
    pytest.importorskip("mido")
    hparams = parse_hparams("transformer_tpu", SIZES)
    keras.utils.set_random_seed(3)
    config = config_from_hparams(hparams, performance.VOCAB_SIZE, language_model=True)
    model = CausalLM(config=config)
    write_checkpoint(model, str(tmp_path / "model.ckpt-7"))
    write_midi(tmp_path / "x.mid", PRIMER)
    files = {"primer": "x.mid", "output": "y.mid", "picture": "y.png"}
    values = {name: tmp_path / file for name, file in files.items()}
    values |= {"checkpoint": tmp_path, "hparams": SIZES, "events": 40, "seed": 2}
    start("examples.music.sample", *(f"--{name}={value}" for name, value in values.items()))
    notes, _ = read_midi(tmp_path / "y.mid")
    primer = encode(PRIMER)
    sampler = sample.TopPSampler(1.0, seed=2)
    (ids,) = model.generate(np.array([primer]), sampler, len(primer) + 40).tolist()
    assert ids[: len(primer)] == primer
    assert rows(notes) == rows(decode(ids)[0])
    # A note of the primer whose key is not struck again stays as it is.
    assert (0.0, 0.5, 60, 77) in rows(notes)
    output = capsys.readouterr().out
    assert f"{tmp_path}/x.mid: Notes: 3\n" in output
    assert f"{tmp_path}/y.mid: Notes: {len(notes)}\n" in output
    assert (tmp_path / "y.png").read_bytes().startswith(b"\x89PNG")


def fake_chorale(length, seed):
    """Returns ids of `length` sixteenths: four keys a voice, each for four sixteenths."""
    keys = np.random.default_rng(seed).integers(0, 4, (length // 4, 4)) + [33, 23, 13, 3]
    return np.repeat(keys, 4, axis=0).flatten().tolist()


@pytest.mark.slow
def test_chorales_trains_each_run_once(tmp_path, capfd):
    # The ids of eight chorales, so that no score is parsed.
    ids = {f"bwv{i}.mxl": fake_chorale(96, i) for i in range(253, 261)}
    (tmp_path / "chorales.json").write_text(json.dumps([ids, {"other than 4 parts": ["bwv1"]}]))
    arguments = f"--output_dir={tmp_path}", "--width=16", "--steps=3", "--seeds=1"
    start("examples.music.chorales", "--positions=relative_v2", *arguments)
    (path,) = tmp_path.glob("relative_v2-*.json")
    assert path.name == "relative_v2-width=16-steps=3-seed=1.json"
    loss = json.loads(path.read_text())["loss"]
    assert abs(loss - np.log(chorales.VOCAB_SIZE)) < 0.5
    # The finished run is read, not repeated.
    path.write_text(json.dumps({"loss": 1.25, "parameters": 1234}))
    capfd.readouterr()
    start("examples.music.chorales", "--positions=sinusoidal,relative_v2", *arguments)
    lines = capfd.readouterr().out.splitlines()
    assert lines[:2] == ["Scores: 9", "Not used, other than 4 parts: 1"]
    assert lines[-1] == "| relative_v2 | 1,234 | 1.2500 | 1.2500 |"
    assert lines[-4] == "| Positions | Parameters | Seed 1 | Mean |"
