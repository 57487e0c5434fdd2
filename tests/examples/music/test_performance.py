"""Tests of `examples.music.performance`: vectors by hand from note_seq's rules, and MIDI files."""

import numpy as np
import pytest

from examples.music import performance
from examples.music.performance import Note, decode, encode, read_midi, write_midi

SUSTAIN = 64


def on(key):
    return 2 + key - 21


def off(key):
    return 90 + key - 21


def shift(steps):
    return 178 + steps - 1


def velocity(value):
    return 278 + (value - 1) // 4


@pytest.fixture
def mido():
    return pytest.importorskip("mido")


@pytest.fixture
def write(mido, tmp_path):
    """Returns a function that writes tracks of (time in ms, message type, values) to a file."""

    def write(*tracks, **header):
        file = mido.MidiFile(**{"type": 1, "ticks_per_beat": 500} | header)
        for events in tracks:
            track, now = mido.MidiTrack(), 0
            for time, kind, values in events:
                track.append(mido.Message(kind, time=time - now, **values))
                now = time
            file.tracks.append(track)
        file.save(tmp_path / "x.mid")
        return str(tmp_path / "x.mid")

    return write


def note_on(time, note, velocity=64, channel=0):
    return time, "note_on", {"note": note, "velocity": velocity, "channel": channel}


def note_off(time, note, channel=0):
    return time, "note_off", {"note": note, "channel": channel}


def pedal(time, value, channel=0):
    return time, "control_change", {"control": SUSTAIN, "value": value, "channel": channel}


def rows(notes):
    """Returns (start, end, key, velocity) of notes, sorted."""
    return sorted((round(n.start, 9), round(n.end, 9), n.pitch, n.velocity) for n in notes)


def found(counts):
    return {text: count for text, count in counts.items() if count}


def test_layout_of_ids():
    assert performance.VOCAB_SIZE == 310
    assert (on(21), on(108), off(21), off(108)) == (2, 89, 90, 177)
    assert (shift(1), shift(100), velocity(1), velocity(127)) == (178, 277, 278, 309)


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


def test_decode_ends_the_first_of_equal_keys_first():
    ids = [velocity(40), on(60), shift(10), velocity(80), on(60), shift(10), off(60), shift(5)]
    notes, counts = decode([*ids, off(60)])
    # The lowest velocities of the bins.
    assert notes == [Note(0.0, 0.2, 60, 37), Note(0.1, 0.25, 60, 77)]
    assert found(counts) == {}


def test_decode_reports_irregular_events():
    ids = [on(60), off(60), 0, off(61), on(62), shift(100), on(64), 1, shift(50), off(62)]
    notes, counts = decode(ids)
    assert notes == [Note(0.0, 1.0, 62, 100)]
    assert found(counts) == {
        "Padding ignored": 1,
        "Ends of keys that were not struck, ignored": 1,
        "Notes that end with the last event": 2,
        "Notes of zero length removed": 2,
    }


def test_round_trip_through_midi_keeps_times(mido, tmp_path, rng):
    starts = rng.uniform(0, 20, 300)
    # Keys in turn, so that equal keys do not overlap.
    notes = [
        Note(start, start + length, 21 + i % 88, int(value))
        for i, (start, length, value) in enumerate(
            zip(np.sort(starts), rng.uniform(0.001, 2.0, 300), rng.integers(1, 128, 300))
        )
    ]
    decoded, counts = decode(encode(notes))
    write_midi(tmp_path / "x.mid", decoded)
    read, read_counts = read_midi(tmp_path / "x.mid")
    assert len(read) == 300 and found(counts) == found(read_counts) == {}
    # Two notes may start in one step, so the order by start and key may differ.
    read, notes = (sorted(x, key=lambda note: (note.pitch, note.start)) for x in (read, notes))
    for note, expected in zip(read, notes):
        assert note.pitch == expected.pitch
        assert abs(note.start - expected.start) <= 0.005 + 1e-9
        assert abs(note.end - expected.end) <= 0.01
        assert 0 <= expected.velocity - note.velocity < 4
    assert encode(read) == encode(decoded)


def test_written_file_repeats_keys(mido, tmp_path):
    notes = [Note(0.0, 0.5, 60, 77), Note(0.5, 1.0, 60, 77), Note(0.75, 1.25, 60, 81)]
    write_midi(tmp_path / "x.mid", notes)
    assert rows(read_midi(tmp_path / "x.mid")[0]) == rows(notes)


def test_read_midi_tempo_of_any_track(mido, tmp_path):
    file = mido.MidiFile(ticks_per_beat=100)
    messages = mido.Message("note_on", note=60), mido.Message("note_off", note=60, time=300)
    file.tracks.append(mido.MidiTrack(messages))
    tempo = mido.MetaMessage("set_tempo", tempo=1_000_000, time=100)
    file.tracks.append(mido.MidiTrack([tempo]))
    file.save(tmp_path / "x.mid")
    # One beat of half a second, then two of a second.
    assert rows(read_midi(tmp_path / "x.mid")[0]) == [(0.0, 2.5, 60, 64)]


def test_sustain_extends_notes_to_the_pedal_or_the_same_key(write):
    path = write(
        [
            pedal(0, 127),
            *(note_on(0, 60), note_on(0, 64), note_off(100, 60), note_off(150, 64)),
            *(note_on(300, 60), note_off(350, 60)),
            pedal(500, 0),
            *(note_on(600, 67), note_off(700, 67)),
        ]
    )
    notes, counts = read_midi(path)
    assert rows(notes) == [
        (0.0, 0.3, 60, 64),
        (0.0, 0.5, 64, 64),
        (0.3, 0.5, 60, 64),
        (0.6, 0.7, 67, 64),
    ]
    assert found(counts) == {}


def test_sustain_values_channels_and_end(write):
    # 63 is up, 64 is down. A pedal is that of its channel. The last event ends what it holds.
    path = write(
        [
            *(pedal(0, 63), note_on(0, 60), note_off(100, 60), pedal(200, 64)),
            *(note_on(300, 62), note_on(300, 72, channel=1)),
            *(note_off(400, 62), note_off(400, 72, channel=1), note_on(800, 74, channel=1)),
            note_off(900, 74, channel=1),
        ]
    )
    notes, _ = read_midi(path)
    assert [row[:3] for row in rows(notes)] == [
        (0.0, 0.1, 60),
        (0.3, 0.4, 72),
        (0.3, 0.9, 62),
        (0.8, 0.9, 74),
    ]


def test_read_midi_reports_all_that_it_removes(write):
    path = write(
        [
            (0, "program_change", {"program": 40}),
            (0, "pitchwheel", {"pitch": 100}),
            *(note_on(0, 20), note_on(0, 109), note_off(100, 20), note_off(100, 109)),
            *(note_on(100, 60), note_off(100, 60), note_on(200, 108), note_off(300, 108)),
            *(note_on(300, 35, channel=9), note_off(400, 35, channel=9), note_on(500, 61)),
        ]
    )
    notes, counts = read_midi(path)
    assert rows(notes) == [(0.2, 0.3, 108, 64)]
    assert found(counts) == {
        "Drum notes removed": 1,
        "Messages pitchwheel ignored": 1,
        "Notes of other instruments, now of the piano": 5,
        "Notes of zero length removed": 1,
        "Notes outside keys 21 to 108 removed": 2,
        "Notes without an end removed": 1,
    }


def test_notes_that_start_together_under_the_pedal(write):
    path = write(
        [pedal(0, 127), note_on(0, 60, 50), note_on(0, 60, 90), note_off(100, 60), pedal(200, 0)]
        + [note_off(300, 60)]
    )
    notes, counts = read_midi(path)
    assert rows(notes) == [(0.0, 0.3, 60, 90)]
    assert found(counts) == {"Notes removed that start together with the same key": 1}


def test_read_midi_rejects_other_files(write, tmp_path):
    (tmp_path / "x.txt").write_text("text")
    with pytest.raises(ValueError, match="x.txt must be a MIDI file, got (OSError|EOFError)"):
        read_midi(str(tmp_path / "x.txt"))
    path = write([note_on(0, 60)], type=2)
    with pytest.raises(ValueError, match="type 0 or 1 with ticks per beat"):
        read_midi(path)
    with open(path, "rb") as file:
        content = file.read()
    (tmp_path / "cut.mid").write_bytes(content[:-8])
    with pytest.raises(ValueError, match="cut.mid must be a MIDI file, got EOFError"):
        read_midi(str(tmp_path / "cut.mid"))
