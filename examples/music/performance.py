"""Piano performances as ids of events, from and to MIDI files. The ids are those of score2perf.

| Ids     | Event      | Value                                        |
| ------- | ---------- | -------------------------------------------- |
| 0, 1    |            | padding, end of the performance              |
| 2–89    | NOTE_ON    | key 21–108                                   |
| 90–177  | NOTE_OFF   | key 21–108                                   |
| 178–277 | TIME_SHIFT | 1–100 steps of 10 ms                         |
| 278–309 | VELOCITY   | bin 1–32 of 4 velocities, for the next notes |

Notes become events by the rules of Magenta's note_seq and score2perf:

- The sustain pedal is applied first, in each track and channel: while it is down, a note lasts until
  the pedal is released or the same key is struck again. After the last event, all notes end.
- Only keys 21 to 108 are encoded.
- Times are rounded to steps, half steps up. A note lasts at least one step.
- Events are sorted by step, then by note, where notes are sorted by start and pitch. So a note may
  end before or after others start in the same step.
- VELOCITY comes directly before NOTE_ON, if the bin differs from that of the note before.
- A shift of more than a second is several TIME_SHIFTs: full seconds first.

Events become notes by these rules:

- If a key is struck several times before it ends, the first note ends first.
- Notes of zero length vanish. NOTE_OFF without a note is ignored. After the last event, all notes
  end.
- The velocity is the lowest of its bin, and 100 before the first VELOCITY.

Notes of zero length, and notes without an end, vanish from MIDI files as well. These rules differ
from note_seq's: one end of a key in a MIDI file ends only the first open note of that key, as in
events; drums are removed instead of encoded as keys of the piano; tempo changes may be in any
track. Functions return remarks about all that they remove or change.
"""

import collections
import dataclasses

from trainer import atomic_files

PADDING, END = 0, 1
LOWEST_KEY, HIGHEST_KEY = 21, 108
STEPS_PER_SECOND = MAX_SHIFT = 100
VELOCITIES_PER_BIN = 4
NOTE_ON = 2
NOTE_OFF = NOTE_ON + HIGHEST_KEY - LOWEST_KEY + 1
TIME_SHIFT = NOTE_OFF + HIGHEST_KEY - LOWEST_KEY + 1
VELOCITY = TIME_SHIFT + MAX_SHIFT
VOCAB_SIZE = VELOCITY + 128 // VELOCITIES_PER_BIN
_DRUM_CHANNEL, _SUSTAIN = 9, 64
# The order of simultaneous events that the sustain pedal is applied to.
_PEDAL_DOWN, _PEDAL_UP, _START, _STOP = range(4)
_TICKS_PER_STEP = 10


@dataclasses.dataclass
class Note:
    """A note: start and end in seconds, key, velocity, and the (track, channel) of its file."""

    start: float
    end: float
    pitch: int
    velocity: int
    part: tuple[int, int] = dataclasses.field(default=(0, 0), compare=False)


def encode(notes: list[Note]) -> list[int]:
    """Returns the ids of the events of notes, without the end of the performance.

    Raises:
        ValueError: if a key is not in the range from 21 to 108.
    """
    notes, events = sorted(notes, key=lambda note: (note.start, note.pitch)), []
    for index, note in enumerate(notes):
        if not LOWEST_KEY <= note.pitch <= HIGHEST_KEY:
            raise ValueError(f"Keys must be {LOWEST_KEY} to {HIGHEST_KEY}, got {note.pitch}.")
        start, end = _round(note.start), _round(note.end)
        events += [(start, index, False), (max(end, start + 1), index, True)]
    ids, now, velocity_id = [], 0, None
    for step, index, is_end in sorted(events):
        if step > now:
            seconds, rest = divmod(step - now - 1, MAX_SHIFT)
            ids += [TIME_SHIFT + MAX_SHIFT - 1] * seconds + [TIME_SHIFT + rest]
            now = step
        note_velocity_id = VELOCITY + (notes[index].velocity - 1) // VELOCITIES_PER_BIN
        if not is_end and note_velocity_id != velocity_id:
            ids.append(velocity_id := note_velocity_id)
        ids.append((NOTE_OFF if is_end else NOTE_ON) + notes[index].pitch - LOWEST_KEY)
    return ids


def _round(seconds):
    return int(seconds * STEPS_PER_SECOND + 0.5)


def decode(ids: list[int]) -> tuple[list[Note], list[str]]:
    """Returns (notes sorted by start and pitch, remarks). Ids after the first 1 are not read.

    Raises:
        ValueError: if an id is not in the range from 0 to 309.
    """
    notes, counts, step, velocity = [], collections.Counter(), 0, 100
    open_notes = collections.defaultdict(collections.deque)

    def close(pitch):
        start, note_velocity = open_notes[pitch].popleft()
        if step == start:
            counts["Notes of zero length removed"] += 1
        else:
            times = start / STEPS_PER_SECOND, step / STEPS_PER_SECOND
            notes.append(Note(*times, pitch, note_velocity))

    for event in ids:
        if event == END:
            break
        if not 0 <= event < VOCAB_SIZE:
            raise ValueError(f"Ids of events must be 0 to {VOCAB_SIZE - 1}, got {event}.")
        if event == PADDING:
            counts["Padding ignored"] += 1
        elif event < NOTE_OFF:
            open_notes[event - NOTE_ON + LOWEST_KEY].append((step, velocity))
        elif event < TIME_SHIFT:
            if open_notes[pitch := event - NOTE_OFF + LOWEST_KEY]:
                close(pitch)
            else:
                counts["Ends of keys that were not struck, ignored"] += 1
        elif event < VELOCITY:
            step += event - TIME_SHIFT + 1
        else:
            velocity = (event - VELOCITY) * VELOCITIES_PER_BIN + 1
    for pitch, starts in open_notes.items():
        counts["Notes that end with the last event"] += len(starts)
        while starts:
            close(pitch)
    return sorted(notes, key=lambda note: (note.start, note.pitch)), _remarks(counts)


def _remarks(counts):
    return [f"{text}: {count}" for text, count in counts.items() if count]


def read_midi(path: str) -> tuple[list[Note], list[str]]:
    """Returns (notes of a MIDI file with the sustain pedal applied, remarks).

    Raises:
        ValueError: if the file can't be read as MIDI, or its times are not in beats.
    """
    notes, pedal, counts, programs = [], [], collections.Counter(), {}
    open_notes = collections.defaultdict(collections.deque)
    for seconds, track, message in _read_messages(path):
        if message.is_meta or message.type == "sysex":
            continue
        part = (track, message.channel) if hasattr(message, "channel") else None
        is_drum = part is not None and message.channel == _DRUM_CHANNEL
        if message.type == "note_on" and message.velocity:
            if is_drum:
                counts["Drum notes removed"] += 1
                continue
            open_notes[part, message.note].append((seconds, message.velocity))
            counts["Notes of other instruments, played on the piano"] += part in programs
        elif message.type in ("note_on", "note_off"):
            if open_notes[part, message.note]:
                start, velocity = open_notes[part, message.note].popleft()
                notes.append(Note(start, seconds, message.note, velocity, part))
        elif is_drum:
            continue
        elif message.type == "program_change":
            programs[part] = message.program
            if message.program < 8:  # pianos
                del programs[part]
        elif message.type == "control_change" and message.control == _SUSTAIN:
            pedal.append((seconds, _PEDAL_DOWN if message.value >= 64 else _PEDAL_UP, part))
        else:
            counts[f"Messages {message.type} ignored"] += 1
    counts["Notes without an end removed"] = sum(map(len, open_notes.values()))
    counts["Notes of zero length removed"] = sum(note.start == note.end for note in notes)
    notes = _apply_sustain([note for note in notes if note.start < note.end], pedal)
    counts["Notes removed that start together with the same key, under the pedal"] = sum(
        note.start == note.end for note in notes
    )
    notes = [note for note in notes if note.start < note.end]
    kept = [note for note in notes if LOWEST_KEY <= note.pitch <= HIGHEST_KEY]
    counts[f"Notes outside keys {LOWEST_KEY} to {HIGHEST_KEY} removed"] = len(notes) - len(kept)
    remarks = _remarks(counts)
    return kept, remarks if kept else [*remarks, "The file has no notes for a piano."]


def _read_messages(path):
    """Yields (seconds, track, message) of a MIDI file, sorted by time, then by track."""
    import mido

    try:
        file = mido.MidiFile(path)
    except FileNotFoundError:
        raise
    except (OSError, EOFError, ValueError, mido.KeySignatureError) as error:
        raise ValueError(f"{path} must be a MIDI file, got an error: {error}") from error
    if file.type == 2 or file.ticks_per_beat <= 0:
        raise ValueError(
            f"{path} must be a MIDI file of type 0 or 1 with ticks per beat, got type {file.type} "
            f"with the time division {file.ticks_per_beat}."
        )
    events = []
    for number, track in enumerate(file.tracks):
        ticks = 0
        for message in track:
            ticks += message.time
            events.append((ticks, number, message))
    # The time of the last tempo change, and the tempo since then.
    change_ticks, change_seconds, tempo = 0, 0.0, mido.bpm2tempo(120)
    for ticks, number, message in sorted(events, key=lambda event: event[0]):
        passed = mido.tick2second(ticks - change_ticks, file.ticks_per_beat, tempo)
        yield change_seconds + passed, number, message
        if message.type == "set_tempo":
            change_ticks, change_seconds, tempo = ticks, change_seconds + passed, message.tempo


def _apply_sustain(notes, pedal):
    """Returns notes with changed ends. Those that start together with the same key get length 0.

    Args:
        notes: notes of all parts.
        pedal: (seconds, `_PEDAL_DOWN` or `_PEDAL_UP`, part).
    """
    notes = [dataclasses.replace(note) for note in notes]
    events = [(note.start, _START, note) for note in notes]
    events += [(note.end, _STOP, note) for note in notes] + pedal
    active, is_down, time = collections.defaultdict(list), {}, 0.0
    for time, kind, note in sorted(events, key=lambda event: event[:2]):
        part = note.part if kind in (_START, _STOP) else note
        others = active[part]
        if kind == _PEDAL_DOWN:
            is_down[part] = True
        elif kind == _PEDAL_UP:
            is_down[part] = False
            ended = [other for other in others if other.end < time]
            active[part] = [other for other in others if other.end >= time]
            for other in ended:
                other.end = time
        elif kind == _START:
            if is_down.get(part):
                for other in others:
                    if other.pitch == note.pitch:
                        other.end = time
                others = [other for other in others if other.pitch != note.pitch]
            active[part] = [*others, note]
        elif not is_down.get(part):
            active[part] = [other for other in others if other is not note]
    for note in sum(active.values(), []):
        note.end = time
    return notes


def write_midi(path: str, notes: list[Note]):
    """Writes notes to a MIDI file of one track, in ticks of a millisecond."""
    import mido

    events = []
    for note in notes:
        start, end = (_TICKS_PER_STEP * _round(time) for time in (note.start, note.end))
        # At the same tick, notes end before others start.
        events += [(start, 1, note.pitch, note.velocity), (end, 0, note.pitch, 0)]
    tempo = mido.bpm2tempo(120)
    track, now = mido.MidiTrack([mido.MetaMessage("set_tempo", tempo=tempo)]), 0
    for tick, is_start, pitch, velocity in sorted(events):
        kind = "note_on" if is_start else "note_off"
        track.append(mido.Message(kind, note=pitch, velocity=velocity, time=tick - now))
        now = tick
    file = mido.MidiFile(type=0, ticks_per_beat=_TICKS_PER_STEP * STEPS_PER_SECOND // 2)
    file.tracks.append(track)
    with atomic_files.atomic_file(path) as temporary:
        file.save(temporary)
