"""Piano performances as ids of events, from and to MIDI files. The ids are those of score2perf.

    0, 1     padding, end of the performance
    2-89     NOTE_ON     keys 21 to 108
    90-177   NOTE_OFF    keys 21 to 108
    178-277  TIME_SHIFT  1 to 100 steps of 10 ms
    278-309  VELOCITY    bins of 4 velocities, for the next notes

Notes become events by the rules of Magenta's note_seq and score2perf:

- The sustain pedal is applied first, in each track and channel: while it is down, a note lasts
  until the pedal is released or its key is struck again. Only keys 21 to 108 are encoded.
- Times are rounded to steps, half steps up. A note lasts at least one step.
- Events are sorted by step, then by note. Notes are sorted by start, then by pitch.
- VELOCITY comes directly before NOTE_ON, if the bin is not that of the note before.
- A shift of more than a second is several TIME_SHIFTs, full seconds first.

Events become notes: if a key is struck several times before it ends, the first note ends first.
Notes of zero length vanish. NOTE_OFF without a note is ignored. The last event ends all notes. The
velocity is the lowest of its bin, and 100 before the first VELOCITY.

MIDI files are read as note_seq reads them, except: the end of a key ends its first open note only;
drums are removed, since they would become keys of the piano; all tracks may change the tempo. Notes
of zero length or without an end vanish. Remarks name everything that is removed or changed.
"""

import collections
import dataclasses
import itertools

from trainer import atomic_files

PADDING, END = 0, 1
LOWEST_KEY, HIGHEST_KEY = 21, 108
STEPS_PER_SECOND = MAX_SHIFT = 100
VELOCITIES_PER_BIN = 4
# The first id of each kind of event, and the number of ids.
NOTE_ON, NOTE_OFF, TIME_SHIFT, VELOCITY, VOCAB_SIZE = 2, 90, 178, 278, 310
_DRUM_CHANNEL, _SUSTAIN = 9, 64
# The order of simultaneous events that the sustain pedal is applied to.
_PEDAL_DOWN, _PEDAL_UP, _START, _STOP = range(4)


@dataclasses.dataclass
class Note:
    """A note: start and end in seconds, key, velocity, and (track, channel) in its file."""

    start: float
    end: float
    pitch: int
    velocity: int
    part: tuple[int, int] = dataclasses.field(default=(0, 0), compare=False)


def encode(notes: list[Note]) -> list[int]:
    """Returns the ids of notes with keys 21 to 108, without the end of the performance."""
    notes, events = sorted(notes, key=lambda note: (note.start, note.pitch)), []
    for index, note in enumerate(notes):
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


def decode(ids: list[int]) -> tuple[list[Note], collections.Counter]:
    """Returns (notes by start and pitch, remarks with counts). Reads no ids after the first 1."""
    open_notes, closed = collections.defaultdict(collections.deque), []
    counts, step, velocity = collections.Counter(), 0, 100
    for event in ids[: ids.index(END)] if END in ids else ids:
        if event == PADDING:
            counts["Padding ignored"] += 1
        elif event < NOTE_OFF:
            note = Note(step / STEPS_PER_SECOND, 0, event - NOTE_ON + LOWEST_KEY, velocity)
            open_notes[note.pitch].append(note)
        elif event < TIME_SHIFT:
            if notes := open_notes[event - NOTE_OFF + LOWEST_KEY]:
                closed.append(dataclasses.replace(notes.popleft(), end=step / STEPS_PER_SECOND))
            else:
                counts["Ends of keys that were not struck, ignored"] += 1
        elif event < VELOCITY:
            step += event - TIME_SHIFT + 1
        else:
            velocity = (event - VELOCITY) * VELOCITIES_PER_BIN + 1
    for note in sum(map(list, open_notes.values()), []):
        counts["Notes that end with the last event"] += 1
        closed.append(dataclasses.replace(note, end=step / STEPS_PER_SECOND))
    notes = _without_empty(closed, counts, "Notes of zero length removed")
    return sorted(notes, key=lambda note: (note.start, note.pitch)), counts


def _without_empty(notes, counts, text):
    kept = [note for note in notes if note.start < note.end]
    counts[text] += len(notes) - len(kept)
    return kept


def read_midi(path: str) -> tuple[list[Note], collections.Counter]:
    """Returns (notes of a MIDI file with the sustain pedal applied, remarks with counts)."""
    notes, pedal, programs, counts = [], [], {}, collections.Counter()
    open_notes = collections.defaultdict(collections.deque)
    for seconds, track, message in _read_messages(path):
        part = track, getattr(message, "channel", None)
        is_start = message.type == "note_on" and message.velocity > 0
        if part[1] == _DRUM_CHANNEL:
            counts["Drum notes removed"] += is_start
        elif is_start:
            note = Note(seconds, 0.0, message.note, message.velocity, part)
            open_notes[part, note.pitch].append(note)
            counts["Notes of other instruments, now of the piano"] += programs.get(part, 0) > 7
        elif message.type in ("note_on", "note_off"):
            if open_notes[part, message.note]:
                note = open_notes[part, message.note].popleft()
                notes.append(dataclasses.replace(note, end=seconds))
        elif message.type == "program_change":
            programs[part] = message.program
        elif message.type == "control_change" and message.control == _SUSTAIN:
            pedal.append((seconds, _PEDAL_DOWN if message.value >= 64 else _PEDAL_UP, part))
        elif not message.is_meta:
            counts[f"Messages {message.type} ignored"] += 1
    counts["Notes without an end removed"] += sum(map(len, open_notes.values()))
    notes = _without_empty(notes, counts, "Notes of zero length removed")
    _apply_sustain(notes, pedal)
    notes = _without_empty(notes, counts, "Notes removed that start together with the same key")
    kept = [note for note in notes if LOWEST_KEY <= note.pitch <= HIGHEST_KEY]
    counts[f"Notes outside keys {LOWEST_KEY} to {HIGHEST_KEY} removed"] += len(notes) - len(kept)
    return kept, counts


def _read_messages(path):
    """Yields (seconds, track, message) of a MIDI file, sorted by time, then by track."""
    import mido

    try:
        file = mido.MidiFile(path)
    except (OSError, EOFError, ValueError, LookupError, mido.KeySignatureError) as error:
        raise ValueError(f"{path} must be a MIDI file, got {error!r}.") from error
    if file.type == 2 or file.ticks_per_beat <= 0:
        raise ValueError(f"{path} must be a MIDI file of type 0 or 1 with ticks per beat.")
    events = []
    for number, track in enumerate(file.tracks):
        ticks = itertools.accumulate(message.time for message in track)
        events += [(tick, number, message) for tick, message in zip(ticks, track)]
    # Ticks and seconds of the last tempo change, and the tempo since then.
    last_ticks, last_seconds, tempo = 0, 0.0, mido.bpm2tempo(120)
    for ticks, number, message in sorted(events, key=lambda event: event[0]):
        passed = mido.tick2second(ticks - last_ticks, file.ticks_per_beat, tempo)
        yield last_seconds + passed, number, message
        if message.type == "set_tempo":
            last_ticks, last_seconds, tempo = ticks, last_seconds + passed, message.tempo


def _apply_sustain(notes, pedal):
    """Changes the ends of notes. `pedal`: (seconds, `_PEDAL_DOWN` or `_PEDAL_UP`, part)."""
    events = [(note.start, _START, note.part, note) for note in notes]
    events += [(note.end, _STOP, note.part, note) for note in notes]
    active, is_down, time = collections.defaultdict(list), {}, 0.0
    for time, kind, part, *note in sorted([*events, *pedal], key=lambda event: event[:2]):
        sounding, ended = active[part], []
        if kind == _PEDAL_DOWN:
            is_down[part] = True
        elif kind == _PEDAL_UP:
            is_down[part] = False
            ended = [other for other in sounding if other.end < time]
        elif kind == _START:
            ended = [n for n in sounding if n.pitch == note[0].pitch and is_down.get(part)]
            sounding += note
        elif note[0] in sounding and not is_down.get(part):
            sounding.remove(note[0])
        for other in ended:
            sounding.remove(other)
            other.end = time
    for other in sum(active.values(), []):
        other.end = time


def write_midi(path: str, notes: list[Note]):
    """Writes notes to a MIDI file of one track, in ticks of a millisecond."""
    import mido

    events = []
    for note in notes:
        # At the same tick, notes end before others start. In the alphabet, too.
        events.append((10 * _round(note.start), "note_on", note.pitch, note.velocity))
        events.append((10 * _round(note.end), "note_off", note.pitch, 0))
    file, now = mido.MidiFile(type=0, ticks_per_beat=500), 0
    file.add_track().append(mido.MetaMessage("set_tempo", tempo=500_000))
    for tick, kind, pitch, velocity in sorted(events):
        message = mido.Message(kind, note=pitch, velocity=velocity, time=tick - now)
        file.tracks[0].append(message)
        now = tick
    with atomic_files.atomic_file(path) as temporary:
        file.save(temporary)
